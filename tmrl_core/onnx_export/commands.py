"""The command `--export`, for `--help`: the module that runs it needs NumPy and onnx."""

from tmrl_core.roles.command import Command

EXPORT = Command(
    "write the policy of a run as an ONNX file, for programs without Python; see `--export --help`",
    "tmrl_core.onnx_export.command:run_export",
    "SOURCE",
)
