"""What others have published for these tasks; the file of results says where it is from."""

from __future__ import annotations

PUBLISHED = {
    "cartpole": "500 at 100k [1]",
    "pendulum": "-157 at 20k [1]",
    "lunarlander": "242 at 1M [1]",
    "lunarlander_continuous": "271 at 1M [1]",
    "hopper": "1217 at 202k [2], 537 at 205k [3]; 2410 at 1M [1]",
    "halfcheetah": "842 at 202k [2], 2777 at 205k [3]; 5819 at 1M [1]",
}
"""By task."""
