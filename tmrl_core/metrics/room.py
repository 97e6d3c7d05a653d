"""Metric sinks of this package, besides that of `metrics.jsonl`, which each run has."""

SINKS = {
    "console": "tmrl_core.metrics.standard:console",
    "tensorboard": "tmrl_core.metrics.tensorboard_sink:of_run",
    "trackio": "tmrl_core.metrics.trackio_sink:of_run",
    "wandb": "tmrl_core.metrics.wandb_sink:of_run",
}
