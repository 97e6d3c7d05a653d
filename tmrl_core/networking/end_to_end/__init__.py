"""Keys, certificates and statements that workers and the trainer share, so that the relay need not be trusted.

`networking.worker.seal` and `networking.trainer.seal` are the two ends. Relay, spool and links carry their proofs as
opaque bytes. The threat model is in `docs/security.md`. Sans-I/O.

The modules import `cryptography`, which costs a process about 10 MB. A role imports them only if its end-to-end
authentication is on.
"""

# Theory of operation
#
# All constructions come from `cryptography`: ECDSA P-256 by the keys of certificates, X25519 with HKDF-SHA256,
# AES-128-GCM, HMAC-SHA256. `identity.py` checks certificates, `run_key.py` has the trainer's keys of a run,
# `stream_keys.py` those of one stream, `group_key.py` that of all workers, `statements.py` the signed structures.
#
# Rejected, with what was measured (benchmarks/results/message_proofs_*, end_to_end_*):
#
# Signatures for samples: 95 us of both ends for a message of 1 kB, against 5 us. A MAC under one key of the run for
# policies: any worker could forge them for the others. Signing policies with the certificate's key: after a renewal,
# stored policies and directives would be invalid.
#
# Checking policies frame by frame while they arrive: 153 short calls take as long as one. Sealing samples frame by
# frame: tried, and no faster; the proofs are computation, and the caches do not matter. A faster hash for policies:
# SHA-256 has instructions of its own in processors and is the fastest secure hash of `cryptography`; BLAKE2b takes
# twice as long.
#
# Random ids of streams: the holder of a stolen bundle could open another worker's stream under its own key, and the
# trainer would take the other worker's messages for duplicates.
