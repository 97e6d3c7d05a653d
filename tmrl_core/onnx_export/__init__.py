"""Policies as ONNX files, for programs without Python: the command `--export`, and `write_onnx` for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.onnx_export.file import write_onnx as write_onnx

__all__, __getattr__, __dir__ = lazy_names(__name__, {"file": "write_onnx"})
