"""Diagnosis of the connection between this machine's worker or trainer and the Server, step by step."""

from tmrl_core.doctor.checks import examine
from tmrl_core.doctor.steps import Step

__all__ = ["Step", "examine"]
