"""Check that a device of torch exists on this machine, and computes."""

from __future__ import annotations

from tmrl_core.errors import ConfigError, MissingExtraError


def check_device(device: str | None, key: str, *, compute: bool = False) -> None:
    """Check that the device exists; None and `cpu` always do.

    Args:
        device: name of the device.
        key: key of the configuration, for the message.
        compute: True: also compute on a CUDA device, because this build of torch may not support it, or another process
            may use it exclusively. False: initialize nothing on the device, because another process will use it.

    Raises:
        ConfigError: the device does not exist, or cannot compute.
        MissingExtraError: torch is not installed.
    """
    if device in (None, "cpu"):
        return
    try:
        import torch
    except ModuleNotFoundError as exc:
        raise MissingExtraError("torch", "trainer", f"{key} = {device}") from exc
    try:
        wanted = torch.device(device)
        if compute or wanted.type != "cuda":
            torch.ones(1, device=wanted).sum().item()
            return
    except (RuntimeError, AssertionError, NotImplementedError) as exc:
        reason = str(exc).splitlines()[0][:200] if str(exc) else type(exc).__name__
        raise ConfigError(f"{key}: found {device!r}, allowed: a device of this machine, such as cpu: {reason}") from exc
    built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    count = torch.cuda.device_count() if built else 0
    if (wanted.index or 0) < count:
        return
    if count:
        allowed = ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
        raise ConfigError(f"{key}: found {device!r}, allowed on this machine: {allowed}")
    raise ConfigError(
        f"{key}: found {device!r}, allowed on this machine: cpu. "
        + (
            "Torch finds no CUDA device: see whether nvidia-smi lists one, and what CUDA_VISIBLE_DEVICES says."
            if built
            else f"Torch {torch.__version__} is built without CUDA; where there is a GPU, install another build of it."
        )
    )
