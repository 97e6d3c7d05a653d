"""A thermostat that learns from two buttons: green when the room is comfortable, red when it is not.

    export GATEWAY_KEY=...
    python thermostat.py                    a simulated room with a simulated resident, a day in a second
    python thermostat.py --buttons typed    you are the resident: type g or r
    python thermostat.py --step-s 900       in real time: one step every 15 minutes

The observation is the temperature of the room and the present target, in degrees Celsius. The action is the next
target. Green is a reward of 1.0, red is 0.0. An episode lasts 24 hours: 96 steps of 15 minutes. The room goes on after
midnight, so the end of a day is a truncation, not a termination.

`Room` and `pressed` are the parts to replace in a real house. The rest is the client of the gateway.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable

from client import Client, GatewayError

STEPS_PER_DAY = 96


class Room:
    """A simulated room: it loses heat to the weather, and the heating warms it up to the target."""

    def __init__(self) -> None:
        self.temperature = random.uniform(15.0, 20.0)
        self._step = 0

    def heat(self, target: float) -> float:
        """Heat for 15 minutes and return the temperature."""
        outside = 6.0 + 5.0 * math.sin(2 * math.pi * (self._step / STEPS_PER_DAY - 0.3))
        self._step += 1
        heating = min(max(target - self.temperature, 0.0), 1.5)
        self.temperature += heating - 0.03 * (self.temperature - outside)
        return self.temperature


def simulated(temperature: float) -> float:
    """Return the button of a resident who likes 20 to 22 degrees."""
    return 1.0 if 20.0 <= temperature <= 22.0 else 0.0


def typed(temperature: float) -> float:
    """Ask the resident."""
    while True:
        button = input(f"{temperature:.1f} degrees. Green or red (g, r)? ").strip().lower()
        if button in ("g", "r"):
            return 1.0 if button == "g" else 0.0


def day(client: Client, room: Room, pressed: Callable[[float], float], step_s: float) -> float:
    """Control the room for 24 hours and return the share of green buttons."""
    target, green = 20.0, 0.0
    action = client.begin([room.temperature, target])
    for step in range(1, STEPS_PER_DAY + 1):
        target = action
        temperature = room.heat(target)
        time.sleep(step_s)
        reward = pressed(temperature)
        green += reward
        action = client.step([temperature, target], reward, truncated=step == STEPS_PER_DAY)
    return green / STEPS_PER_DAY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://localhost:8000/")
    parser.add_argument("--ca", help="the gateway's ca.pem, for HTTPS")
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--buttons", choices=("simulated", "typed"), default="simulated")
    parser.add_argument("--step-s", type=float, default=0.01, help="seconds between two steps")
    arguments = parser.parse_args()
    key = os.environ.get("GATEWAY_KEY") or sys.exit("set GATEWAY_KEY to an API key")

    pressed = typed if arguments.buttons == "typed" else simulated
    room = Room()
    try:
        client = Client(key, arguments.url, arguments.ca)
        for number in range(1, arguments.days + 1):
            print(f"day {number}: {day(client, room, pressed, arguments.step_s):.0%} green", flush=True)
        client.close()
    except GatewayError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
