"""Keys, certificates and statements that workers and the trainer share, so that the relay need not be trusted.

`networking.worker.seal` and `networking.trainer.seal` are the two ends. Relay, spool and links carry their proofs as
opaque bytes. The threat model and the construction are in `docs/security.md` and `docs/architecture.md`. Sans-I/O.

The modules import `cryptography`, which costs a process about 10 MB. A role imports them only if its end-to-end
authentication is on.
"""
