"""What may be wrong between this machine's worker or trainer and the Server, looked at step by step."""

from tmrl_core.doctor.checks import examine
from tmrl_core.doctor.steps import Step

__all__ = ["Step", "examine"]
