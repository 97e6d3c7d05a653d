"""Hard files say at their head how they work, and comments keep their share of the package."""

from __future__ import annotations

from tests import source

HEAD = "# Theory of operation"
LEAST_LINES = 8
LEAST_COMMENTS = 5.5
"""Comment-only lines in percent of all lines of the package, as in `benchmarks/lines.py`. It only goes up."""

_NAMES = """
actor/policies/convolutions actor/policies/flattening actor/policies/numpy/mlp actor/policies/torch/mlp
actor/policies/weights
actor/rollout/checked_environment actor/rollout/lockstep_rule actor/rollout/loop actor/rollout/real_time
actor/rollout/recorder actor/rollout/runner actor/rollout/uplink
config/loading config/references
envs/lerobot/robot envs/old_gym envs/real_time envs/replay/pool envs/replay/recorded envs/replay/unrolling
gateway/advice/learner gateway/central gateway/client_sessions
local/supervision
metrics/branch metrics/progress metrics/recorder metrics/wandb_sink
multiagent/collector multiagent/experiences multiagent/round_episodes multiagent/store
networking/end_to_end/stream_keys
networking/links/base networking/links/worker_link
networking/protocol/connection networking/protocol/delivery networking/protocol/framing networking/protocol/messages
networking/relay/connection networking/relay/core networking/relay/credit_flow networking/relay/spooling
networking/security/admission networking/security/authentication networking/security/certificates
networking/security/credentials networking/security/revocations
networking/spools/disk_spool
networking/trainer/connection networking/trainer/seal
networking/transports/tls networking/transports/tlspyo/transport
networking/worker/connection networking/worker/seal
roles/trainer
rooms
samples/codec samples/growing_columns samples/segments samples/values samples/writer
sessions/lerobot/dataset sessions/session_files
storage/lock storage/log storage/segment_file
testing/proxy
training/agents/losses training/agents/networks training/agents/off_policy training/agents/ppo
training/agents/recurrent training/agents/sac
training/checkpoints/capture training/checkpoints/checkpoint_store training/checkpoints/resumption
training/loops/limiter training/loops/lockstep_round training/loops/training_loop
training/memories/batch_reader training/memories/disk_rows training/memories/frame_store training/memories/replay
training/memories/sum_tree training/memories/transition_builder
training/remote/interface
training/updates/compiled training/updates/cuda_graphs training/updates/rollback
web/connections
"""
HARD = _NAMES.split()
"""Modules below the package."""


def theory_lines(module: str) -> int:
    """Number of comment lines below the heading."""
    lines = (source.PACKAGE / f"{module}.py").read_text(encoding="utf-8").splitlines()
    if HEAD not in lines:
        return 0
    below = lines[lines.index(HEAD) + 1 :]
    return next((number for number, line in enumerate(below) if not line.startswith("#")), len(below))


def test_hard_files_begin_with_their_theory() -> None:
    assert len(HARD) >= 40
    assert [module for module in HARD if theory_lines(module) < LEAST_LINES] == []


def test_comments_keep_their_share() -> None:
    lines = [line for file in source.FILES for line in file.read_text(encoding="utf-8").splitlines()]
    assert 100 * sum(line.lstrip().startswith("#") for line in lines) / len(lines) >= LEAST_COMMENTS
