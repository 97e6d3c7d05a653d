"""Policies as ONNX files: the command `--export`."""

COMMANDS = {"export": "tmrl_core.onnx_export.commands:EXPORT"}
"""`python -m tmrl_core --export`: the policy of a run as one ONNX file."""
