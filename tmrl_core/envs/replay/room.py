"""Recorded sessions as environments, and environments written in torch."""

_NAMES = {
    "tmrl_core.envs": (
        "BaseEnvironment FunctionalEnv SessionActor SessionBatchEnvironment SessionPoolEnvironment Sessions "
        "get_sessions"
    ),
    "tmrl_core.sessions": "SessionBatch SessionPool padded_sequences",
}

EXPORTS = {
    f"{package}.{name}": f"tmrl_core.envs.replay:{name}" for package, names in _NAMES.items() for name in names.split()
}
