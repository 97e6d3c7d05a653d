"""The classes of `tmrl.networking`, with the attributes that tmrl's scripts read and set."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tmrl_core.actor.rollout.recorder import SampleCompressor
from tmrl_core.compat.policy_files import has_torch_format
from tmrl_core.config import CFG, Cfg, Config, current, given
from tmrl_core.config.loading import expanded
from tmrl_core.networking.links import TrainerLink
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.transports.selection import link_settings
from tmrl_core.roles import buffer, rollout_worker, server, trainer
from tmrl_core.samples.codec import decoded_bytes
from tmrl_core.training.remote.interface import RemoteInterface

if TYPE_CHECKING:
    from tmrl_core.training.value_types import Policy

__all__ = ["Buffer", "RolloutWorker", "Server", "Trainer", "TrainerInterface"]

COMPAT_ACTOR = "tmrl_core.compat.custom.custom_models:SquashedGaussianMLPActor"
Updater: TypeAlias = Callable[[Any, Callable[[], Any]], Any]


class _Arguments:
    """Arguments of a constructor of tmrl's: those of the project's class, and some that are settings here.

    Args:
        core: the project's class.
        keys: keys of the section `network` by the names of tmrl's arguments, in the order of those.
    """

    def __init__(self, core: type[Any], **keys: str) -> None:
        self._keys = {**keys, "keys_dir": "credentials_dir"}
        parameters = []
        for parameter in inspect.signature(core).parameters.values():
            parameters.append(parameter)
            names = {"password": list(keys), "security": ["keys_dir"]}.get(parameter.name, [])
            parameters += [inspect.Parameter(name, parameter.kind, default=CFG) for name in names]
        self.signature = inspect.Signature(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments for the project's class. The settings among them are in its `config`."""
        found = self.signature.bind(*args, **kwargs).arguments
        settings = {key: found.pop(name, CFG) for name, key in self._keys.items()}
        return {**found, "config": _configured(found.get("config"), **settings)}


def _configured(config: Config | None, **keys: Any) -> Config:
    """Return the configuration with these keys of the section `network`.

    Args:
        config: the configuration; None: the one in use.
        keys: values; left out, and None: as it is. Those of a transport that is not here have no effect.
    """
    config = current() if config is None else config
    network = config.network
    changes = {key: one for key, one in keys.items() if one not in (CFG, None) and key in network.__struct_fields__}
    if not changes:
        return config
    if "credentials_dir" in changes:
        changes["credentials_dir"] = str(expanded(changes["credentials_dir"]).absolute())
    changed = msgspec.structs.replace(config, network=msgspec.structs.replace(network, **changes))
    return changed.started_in(config.start_folder)


_SIZES = {"header_size": "header_size", "max_buf_len": "max_buf_len"}
_OF_SERVER = _Arguments(server.Server, local_port="local_port_server", header_size="header_size")
_OF_WORKER = _Arguments(rollout_worker.RolloutWorker, local_port="local_port_worker", **_SIZES)
_OF_TRAINER = _Arguments(trainer.Trainer, local_com_port="local_port_trainer", **_SIZES)


class Server(server.Server):
    """The project's Server, with the arguments of tmrl's.

    Besides those of `tmrl_core.networking.Server`: `local_port` and `header_size`, for the transport `tlspyo` only, and
    `keys_dir`, the folder of the credentials.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(**_OF_SERVER(*args, **kwargs))


Server.__init__.__signature__ = _OF_SERVER.signature  # type: ignore[attr-defined]


class Buffer(buffer.Buffer):
    """The project's Buffer.

    Args:
        maxlen: capacity in samples; left out: from the configuration.
    """

    def clip_to_maxlen(self) -> None:
        """Do nothing: the oldest samples beyond `maxlen` are dropped as soon as there are too many."""


class RolloutWorker(rollout_worker.RolloutWorker):
    """The project's RolloutWorker, with the attributes of tmrl's.

    Besides the arguments of `tmrl_core.networking.RolloutWorker`: `local_port`, `header_size` and `max_buf_len`, for
    the transport `tlspyo` only, and `keys_dir`, the folder of the credentials. tmrl's MLP policy acts without torch,
    unless the file of its weights is tmrl's.

    Attributes:
        server_ip: address of the Server.
        get_local_buffer_sample: the sample compressor.
        obs_preprocessor, crc_debug, max_samples_per_episode, device: the arguments.
        model_path_history, model_history: the arguments, which may be changed.
        model_cpt: number of updates since the latest dated copy of the policy.
        debug_ts_cpt, debug_ts_res_cpt: with `crc_debug`, number of samples, and of steps since the reset.
    """

    buffer_cls: ClassVar[type[buffer.Buffer]] = Buffer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given_here = _OF_WORKER(*args, **kwargs)
        path = given(given_here.get("model_path", CFG), given_here["config"].worker_model_path)
        if path is None or not has_torch_format(Path(path)):
            given_here["actor_module_cls"] = _native(given_here["actor_module_cls"])
        super().__init__(**given_here)
        self.server_ip: str = given_here.get("server_ip") or "127.0.0.1"

    @property
    def get_local_buffer_sample(self) -> SampleCompressor | None:
        """The sample compressor."""
        return self.sample_compressor

    @get_local_buffer_sample.setter
    def get_local_buffer_sample(self, compressor: SampleCompressor | None) -> None:
        self.sample_compressor = compressor

    @property
    def obs_preprocessor(self) -> Callable[[Any], Any] | None:
        """Function that is applied to observations."""
        return self.loop.obs_preprocessor

    @property
    def crc_debug(self) -> bool:
        """True: samples carry their original transition."""
        return self.recorder.crc_debug

    @property
    def max_samples_per_episode(self) -> float:
        """Number of steps at which an episode is truncated."""
        return self.recorder.max_samples_per_episode

    @property
    def device(self) -> Any:
        """Device of the policy."""
        return self.runner.device

    @property
    def model_path_history(self) -> str | None:
        """Folder and name prefix of dated copies of the policy."""
        return self.uplink.files.history

    @model_path_history.setter
    def model_path_history(self, prefix: str | Path | None) -> None:
        self.uplink.files.history = None if prefix is None else str(prefix)

    @property
    def model_history(self) -> int:
        """Number of published models between two dated copies."""
        return self.uplink.files.every

    @model_history.setter
    def model_history(self, every: int) -> None:
        self.uplink.files.every = every

    @property
    def model_cpt(self) -> int:
        """Number of published models since the latest dated copy."""
        return self.uplink.files.since

    @property
    def debug_ts_cpt(self) -> int:
        """Number of samples with their original transition."""
        return self.recorder.compared

    @property
    def debug_ts_res_cpt(self) -> int:
        """Number of steps since the reset."""
        return 0 if self.recorder.episode is None else self.recorder.episode.steps


RolloutWorker.__init__.__signature__ = _OF_WORKER.signature  # type: ignore[attr-defined]


def _native(actor: Any) -> Any:
    """Return the project's policy for tmrl's, which has the same weights, because it also acts without torch."""
    if isinstance(actor, functools.partial):
        return functools.partial(_native(actor.func), *actor.args, **actor.keywords)
    if inspect.isclass(actor) and f"{actor.__module__}:{actor.__qualname__}" == COMPAT_ACTOR:
        from tmrl_core.actor import SquashedGaussianMLPActor

        return SquashedGaussianMLPActor
    return actor


class Trainer(trainer.Trainer):
    """The project's Trainer, with the attributes of tmrl's, which may be changed before `run`.

    Besides the arguments of `tmrl_core.networking.Trainer`: `local_com_port`, `header_size` and `max_buf_len`, for the
    transport `tlspyo` only, and `keys_dir`, the folder of credentials.

    Attributes:
        server_ip: address of the Server.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given_here = _OF_TRAINER(*args, **kwargs)
        super().__init__(**given_here)
        self.server_ip: str = given(given_here.get("server_ip", CFG), given_here["config"].server.host) or "127.0.0.1"
        self._updater_fn: Updater | None = given_here.get("updater_fn")

    @property
    def dump_run_instance_fn(self) -> Callable[[Any, Path], None] | None:
        """Writes a checkpoint; None: the project's format."""
        return self._checkpoints.dump

    @dump_run_instance_fn.setter
    def dump_run_instance_fn(self, dump: Callable[[Any, Path], None] | None) -> None:
        self._checkpoints.dump = dump

    @property
    def load_run_instance_fn(self) -> Callable[[Path], Any] | None:
        """Reads a checkpoint; None: the project's format."""
        return self._checkpoints.load

    @load_run_instance_fn.setter
    def load_run_instance_fn(self, load: Callable[[Path], Any] | None) -> None:
        self._checkpoints.load = load

    @property
    def updater_fn(self) -> Updater | None:
        """Called with a training object from a checkpoint, and with `training_cls`."""
        return self._updater_fn

    @updater_fn.setter
    def updater_fn(self, updater: Updater | None) -> None:
        self._updater_fn = updater
        self._checkpoints.updater = None if updater is None else lambda training: updater(training, self.training_cls)


Trainer.__init__.__signature__ = _OF_TRAINER.signature  # type: ignore[attr-defined]


class TrainerInterface(RemoteInterface):
    """Link to the Server for a training loop of one's own: samples in, policies out.

    It begins to connect immediately. Close it, or use it as a context manager. A Trainer keeps checkpoints, evaluations
    and records too.

    Args:
        server_ip: address of the Server; None: this machine.
        server_port: port of the Server.
        password: the token of trainers.
        local_com_port: for the transport `tlspyo` only.
        security: "TLS" or None.
        keys_dir: folder of the credentials.
        model_path: file that each published policy is written to; None: none.
    """

    def __init__(
        self,
        server_ip: str | None = None,
        server_port: int | Cfg = CFG,
        password: str | Cfg | None = CFG,
        local_com_port: int | Cfg = CFG,
        header_size: int | Cfg = CFG,
        max_buf_len: int | Cfg = CFG,
        security: Literal["TLS"] | Cfg | None = CFG,
        keys_dir: str | Path | Cfg | None = CFG,
        hostname: str | Cfg | None = CFG,
        model_path: str | Path | Cfg | None = CFG,
        *,
        transport: str | Cfg = CFG,
    ) -> None:
        config = _configured(
            None,
            credentials_dir=keys_dir,
            local_port_trainer=local_com_port,
            header_size=header_size,
            max_buf_len=max_buf_len,
        )
        settings = link_settings(
            config,
            host=server_ip,
            port=server_port,
            transport=transport,
            security=security,
            hostname=hostname,
            password=password,
        )
        link = TrainerLink(
            settings,
            name="trainer",
            run=config.run.name,
            inbox_bytes=config.trainer.inbox_bytes,
            cost_of=decoded_bytes,
        )
        path = given(model_path, config.trainer_model_path)
        super().__init__(link)
        self.model_path = None if path is None else Path(path).absolute()
        self.server_ip = settings.host
        link.start()

    def broadcast_model(self, model: Policy) -> Version:
        """Publish a policy as the latest, and write it to `model_path`."""
        if self.model_path is not None:
            self.model_path.parent.mkdir(parents=True, exist_ok=True)
            model.save(self.model_path)
        return super().broadcast_model(model)

    def close(self) -> None:
        """Acknowledge the retrieved samples, and close the link."""
        self.commit()
        self.link.close()

    def __enter__(self) -> TrainerInterface:
        """Return this object."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the link."""
        self.close()
