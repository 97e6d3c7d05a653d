"""Precedence, search, secrets, the current configuration, and what a person reads when a key is wrong."""

from __future__ import annotations

import functools
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import msgspec
import pytest
from msgspec import UNSET

from tmrl_core import config as configuration
from tmrl_core.cli.main import config_schema
from tmrl_core.config import CFG, Config, current, data_folder, find_credentials_folder, given, load, resolved, use
from tmrl_core.config.documents import read_document
from tmrl_core.config.loading import convert, from_values, token_from_environment, with_changes
from tmrl_core.config.resuming import in_force, plain
from tmrl_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
READY = sorted((ROOT / "config").glob("*.*"))


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the person who runs the tests: no file here, an empty data folder, no variables."""
    for name in list(os.environ):
        if name.startswith("TMRL_CORE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TMRL_CORE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


# --- what is refused, and how it is said ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"server": {"prot": 1}}, ["server.prot: unknown key", "Did you mean port?", "Allowed here: host, bind, port"]),
        ({"servr": {}}, ["servr: unknown section", "Did you mean server?", "trainer, checkpoint"]),
        ({"port": 1}, ["port: unknown section", "server.port"]),
        ({"trainer": {"evaluation": {"seeds": 3}}}, ["trainer.evaluation.seeds: unknown key", "first_seed"]),
        ({"a": 1, "server": {"b": 2}}, ["a: unknown section", "server.b: unknown key"]),
        ({"server": {"port": "abc"}}, ["server.port", "the text 'abc'", "a whole number from 0 to 65535"]),
        ({"server": {"port": 70000}}, ["server.port", "the number 70000", "a whole number from 0 to 65535"]),
        ({"gateway": {"port": None}}, ["gateway.port", "found null"]),
        ({"server": {"port": True}}, ["server.port", "the flag true"]),
        ({"server": 3}, ["server: found the number 3", "a mapping with the keys host, bind"]),
        ({"memory": {"capacity": 1.5}}, ["memory.capacity", "1.5", "a whole number of at least 1"]),
        ({"memory": {"capacity": 0}}, ["memory.capacity", "a whole number of at least 1"]),
        ({"worker": {"collection": "asynchron"}}, ["worker.collection", "Did you mean asynchronous or synchronous?"]),
        ({"worker": {"crc_debug": "no"}}, ["worker.crc_debug", "the text 'no'", "true or false"]),
        ({"worker": {"max_env_steps_per_update": 0}}, ["max_env_steps_per_update", "a number above 0 or null"]),
        ({"network": {"security": "SSL"}}, ["network.security", "'SSL'", "TLS or null"]),
        (
            {"environment": {"cls": "gymnasium.make"}},
            ["environment.cls", "a reference `package.module:Name`. Did you mean gymnasium:make?"],
        ),
        ({"environment": {"cls": "ALE/Pong-v5"}}, ["tmrl_core.envs:GenericGymEnv, kwargs: {id: ALE/Pong-v5}."]),
        ({"agent": {"cls": "DQNAgent"}}, ["If it is one of this package: tmrl_core.training:DQNAgent."]),
        ({"actor": {"cls": "QValueMLPActor"}}, ["If it is one of this package: tmrl_core.actor:QValueMLPActor."]),
        ({"environment": {"kwargs": [1]}}, ["environment.kwargs", "found a list", "allowed: a mapping"]),
        ({"run": {"tags": "one"}}, ["run.tags", "found the text 'one'", "allowed: a list"]),
        (
            {"worker": {"safe_action": "left"}},
            ["worker.safe_action", "found the text 'left'", "a number or a list or a"],
        ),
        ({"run": {"name": "a/b"}}, ["run.name", "'a/b'"]),
        ({"run": {"name": ".."}}, ["run.name"]),
        ({"worker": {"name": 7}}, ["worker.name", "the number 7", "write it in quotes"]),
        ({"network": {"token": "hunter2"}}, ["network.token", "secrets are not allowed", "TMRL_CORE_TOKEN"]),
        ({"password": "hunter2"}, ["password", "TMRL_CORE_TOKEN"]),
        ({"RUN_NAME": "x", "PASSWORD": "hunter2"}, ["RUN_NAME, a key of tmrl", "--import-config FILE -o my.yaml"]),
        ({"metrics": {"wandb_key": "hunter2"}}, ["metrics.wandb_key", "WANDB_API_KEY"]),
        (
            {"agent": {"kwargs": {"hidden_sizes": [256]}}, "actor": {"kwargs": {"hidden_sizes": [64]}}},
            ["agent.kwargs.hidden_sizes: found [256]", "actor.kwargs.hidden_sizes is [64]", "actor.kwargs only"],
        ),
        ({"memory": {"capacity": 10}}, ["memory.capacity: 10", "memory.batch_size = 256"]),
        ({"memory": {"capacity": 500}}, ["trainer.start_training: 1000", "memory.capacity = 500"]),
        ({"network": {"heartbeat_s": 20}}, ["network.heartbeat_s: 20", "network.silent_s = 10"]),
        ({"network": {"backoff_min_s": 20}}, ["network.backoff_min_s", "backoff_max_s = 15"]),
        ({"network": {"max_message_bytes": 1e9}}, ["server.budget_bytes: 67108864", "max_message_bytes = 1000000000"]),
        ({"network": {"transport": "tlspyo", "local_port_worker": 55555}}, ["must differ", "55555"]),
        ({"network": {"security": None}, "server": {"host": "a.org"}}, ["server.host: 'a.org'", "allow_insecure"]),
        ({"network": {"security": None}, "server": {"bind": "0.0.0.0"}}, ["server.bind", "allow_insecure_remote"]),
        (
            {"network": {"security": None, "end_to_end": "encrypt"}},
            ["network.end_to_end: encrypt", "network.security: null has none", "end_to_end: off"],
        ),
        (
            {"network": {"transport": "tlspyo", "end_to_end": "authenticate"}},
            ["network.end_to_end: authenticate", "network.transport: tlspyo has none", "end_to_end: off"],
        ),
        ({"network": {"end_to_end": "sign"}}, ["network.end_to_end", "'sign'", "authenticate, encrypt, off or null"]),
        ({"worker": {"max_steps_per_update": 1}}, ["worker.max_steps_per_update", "synchronous collection only"]),
        ({"worker": {"collection": "lockstep", "when_full": "drop_oldest"}}, ["worker.when_full", "lockstep"]),
        ({"worker": {"collection": "lockstep"}}, ["trainer.loop", "TorchTrainingOffline", "TrainingLockstep"]),
        (
            {"trainer": {"loop": "tmrl_core.training:TrainingLockstep"}},
            ["trainer.loop", "worker.collection: lockstep", "asynchronous"],
        ),
        (
            {
                "worker": {"collection": "lockstep", "crc_debug": True, "sample_compressor": "builtins:print"},
                "memory": {"storage": "disk", "sample_preprocessor": "builtins:print"},
                "trainer": {
                    "loop": "tmrl_core.training:TrainingLockstep",
                    "lockstep": {"steps_per_round": 5, "episodes_per_round": 5},
                },
            },
            [
                "worker.crc_debug",
                "worker.sample_compressor",
                "memory.storage",
                "memory.sample_preprocessor",
                "one of steps_per_round (5) and episodes_per_round (5)",
            ],
        ),
        (
            {
                "worker": {"collection": "lockstep"},
                "memory": {"n_step": 3, "sampling": "prioritized", "max_drawn_lag": 4},
                "trainer": {"loop": "tmrl_core.training:TrainingLockstep", "limiter": {"samples_per_insert": 8}},
            },
            [
                "memory.n_step: 3",
                "memory.sampling: prioritized",
                "memory.max_drawn_lag: 4",
                "trainer.limiter.samples_per_insert: 8",
            ],
        ),
        (
            {"trainer": {"limiter": {"samples_per_insert": 512}}},
            ["samples_per_insert: 512 cannot be reached", "memory.batch_size = 256", "per_env_step to 2"],
        ),
        (
            {"trainer": {"limiter": {"samples_per_insert": 8, "error_buffer": 100}}},
            ["error_buffer: 100", "256 or more"],
        ),
        ({"memory": {"prefetch": 2, "sampling": "prioritized"}}, ["memory.prefetch: 2", "take 0 or null"]),
        ({"memory": {"prefetch": 1, "sample_preprocessor": "builtins:print"}}, ["memory.prefetch: 1", "Python code"]),
        ({"trainer": {"limiter": {"error_buffer": 100}}}, ["says nothing without trainer.limiter.samples_per_insert"]),
        ({"trainer": {"evaluation": {"target_return": 1.0}}}, ["target_return", "every_updates is 0"]),
        ({"worker": {"max_env_steps_per_update": float("inf")}}, ["worker.max_env_steps_per_update", "write null"]),
    ],
)
def test_errors_name_the_path_of_the_key(values: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values(values, "my.yaml")
    for part in parts:
        assert part in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_free_ports_do_not_contradict_each_other() -> None:
    network = {"transport": "tlspyo", "local_port_server": 0, "local_port_trainer": 0}
    config = from_values({"server": {"port": 0}, "network": network})
    assert msgspec.structs.asdict(config.network)["local_port_server"] == 0


def test_a_file_s_mistake_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("server: {port: abc}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"my\.yaml: server\.port: found the text 'abc'"):
        load(path)


def test_whole_numbers_may_be_written_as_floats(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("memory: {capacity: 1e6, batch_size: 512.0}\nworker: {max_samples_per_episode: 1e3}\n", "utf-8")
    config = load(path)
    assert (config.memory.capacity, config.memory.batch_size) == (1_000_000, 512)
    assert type(config.memory.capacity) is int
    assert config.worker.max_samples_per_episode == 1000


def test_kwargs_are_passed_on_unchanged() -> None:
    kwargs = {"hidden_sizes": [256.0, 256], "token": "x", "bound": float("inf")}
    found = from_values({"agent": {"cls": "mine:Agent", "kwargs": kwargs}}).agent.kwargs
    assert found == kwargs
    assert type(found["hidden_sizes"][0]) is float


# --- where values come from -------------------------------------------------------------------------------------------


def test_later_sources_win(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("server: {host: file.org, port: 1000, max_workers: 3}\n", encoding="utf-8")
    environ = {"TMRL_CORE_SERVER_HOST": "environment.org", "TMRL_CORE_SERVER_PORT": "2000"}
    config = load(path, ["server.port=3000"], environ)
    assert (config.server.host, config.server.port, config.server.max_workers) == ("environment.org", 3000, 3)
    assert config.server.budget_bytes == Config().server.budget_bytes


def test_environment_values_are_checked_like_others() -> None:
    with pytest.raises(ConfigError, match=r"TMRL_CORE_SERVER_PORT: server\.port: found the text 'many'"):
        load(environ={"TMRL_CORE_SERVER_PORT": "many"})
    # A name that looks like a number is still a name.
    assert load(environ={"TMRL_CORE_RUN_NAME": "12"}).run.name == "12"


def test_unknown_variables_are_warned_about_without_their_value(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tmrl_core.config"):
        load(environ={"TMRL_CORE_TOKN": "hunter2", "TMRL_CORE_TOKEN": "hunter2"})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "TMRL_CORE_TOKN" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("server.port", "write it as section.key=value"),
        ("=3", "write it as section.key=value"),
        ("server..port=3", "write it as section.key=value"),
        ("server.port=[", "--set server.port: line 1"),
        ("server.prot=3", "--set server.prot: server.prot: unknown key"),
        ("server.port=abc", "--set server.port: server.port: found the text 'abc'"),
        ("server.port.x=3", "server.port.x"),
        ("network.token=hunter2", "secrets are not allowed"),
    ],
)
def test_a_wrong_override_is_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=[override])
    assert said in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_overrides_are_yaml_and_reach_into_kwargs() -> None:
    config = load(
        overrides=[
            "agent.kwargs.hidden_sizes=[64, 64]",
            "worker.max_env_steps_per_update=null",
            "environment.kwargs.id=CartPole-v1",
            "memory.capacity=1e5",
            "worker.name=robot6",
            "worker.name=robot7",
        ]
    )
    assert config.agent.kwargs == {"hidden_sizes": [64, 64]}
    assert config.worker.max_env_steps_per_update is None
    assert config.environment.kwargs["id"] == "CartPole-v1"
    assert config.memory.capacity == 100_000
    assert config.worker.name == "robot7"


def test_without_a_name_the_file_is_searched_in_order(tmp_path: Path) -> None:
    assert load(environ={"TMRL_CORE_HOME": str(tmp_path / "home")}).run.name == "default"
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("run: {name: of_data_folder}\n", encoding="utf-8")
    environ = {"TMRL_CORE_HOME": str(home)}
    assert load(environ=environ).run.name == "of_data_folder"
    (tmp_path / "tmrl_core.yaml").write_text("run: {name: of_here}\n", encoding="utf-8")
    assert load(environ=environ).run.name == "of_here"
    (tmp_path / "named.json").write_text('{"run": {"name": "of_variable"}}', encoding="utf-8")
    environ["TMRL_CORE_CONFIG"] = str(tmp_path / "named.json")
    assert load(environ=environ).run.name == "of_variable"
    (tmp_path / "named.json").unlink()
    with pytest.raises(ConfigError, match=r"named\.json: no such file"):
        load(environ=environ)


def test_the_data_folder_is_the_platform_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_folder({"TMRL_CORE_HOME": "/somewhere"}) == Path("/somewhere")
    monkeypatch.setattr(sys, "platform", "linux")
    assert data_folder({"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "tmrl_core"
    assert data_folder({}) == Path.home() / ".local" / "share" / "tmrl_core"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_folder({}) == Path.home() / "Library" / "Application Support" / "tmrl_core"
    monkeypatch.setattr(sys, "platform", "win32")
    assert data_folder({"LOCALAPPDATA": str(tmp_path)}) == tmp_path / "tmrl_core"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has a home for each user")
def test_a_user_id_without_a_home_folder_is_told_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pwd

    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)  # as in a container with an arbitrary user id
    one_line = "^[^\n]*no home folder. Set TMRL_CORE_HOME to a folder[^\n]*$"
    for needs in (
        lambda: data_folder({}),
        lambda: find_credentials_folder(Config(), {}),
        lambda: load("~/my.yaml"),
        lambda: data_folder({"TMRL_CORE_HOME": "~/here"}),
        lambda: token_from_environment({"TMRL_CORE_TOKEN_FILE": "~/token"}),
    ):
        with pytest.raises(ConfigError, match=one_line):
            needs()
    # No home is needed where all is named.
    assert load(environ={}).run.name == "default"
    named = from_values({"network": {"credentials_dir": "keys"}})
    assert find_credentials_folder(named, {}) == tmp_path / "keys"
    assert data_folder({"TMRL_CORE_HOME": str(tmp_path)}) == tmp_path


def test_a_home_folder_of_an_unknown_user_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^~nobody-of-this-name/my\.yaml cannot be found"):
        load("~nobody-of-this-name/my.yaml")


def test_the_credentials_folder_is_searched_in_order(tmp_path: Path) -> None:
    environ = {"TMRL_CORE_HOME": str(tmp_path / "home")}
    assert find_credentials_folder(Config(), environ) == tmp_path / "home" / "credentials"
    here = tmp_path / "credentials"
    here.mkdir()
    (here / "README.md").touch()
    assert find_credentials_folder(Config(), environ) == tmp_path / "home" / "credentials"
    (here / "ca.pem").touch()
    assert find_credentials_folder(Config(), environ) == here
    named = from_values({"network": {"credentials_dir": "keys"}})
    assert find_credentials_folder(named, environ) == tmp_path / "keys"


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_the_token_is_read_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert token_from_environment(os.environ) is None
    file = tmp_path / "token"
    file.write_text("hunter2\n", encoding="utf-8")
    monkeypatch.setenv("TMRL_CORE_TOKEN_FILE", str(file))
    assert token_from_environment(os.environ) == "hunter2"
    monkeypatch.setenv("TMRL_CORE_TOKEN", "hunter3")
    assert token_from_environment(os.environ) == "hunter3"
    config = load()
    assert "hunter" not in repr(config) + resolved(config) + str(msgspec.to_builtins(config))


@pytest.mark.parametrize("content", [None, b" \n", b"\xff"])
def test_a_token_file_without_a_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("TMRL_CORE_TOKEN_FILE", str(file))
    with pytest.raises(ConfigError, match="TMRL_CORE_TOKEN_FILE"):
        assert token_from_environment(os.environ)


@pytest.mark.parametrize("text", ["\udcff\udcfe", "x" * 5_000])
def test_invalid_tokens_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TMRL_CORE_TOKEN", text)
    with pytest.raises(ConfigError, match="TMRL_CORE_TOKEN: this is not a token") as raised:
        assert token_from_environment(os.environ)
    assert text not in str(raised.value)


# --- the current configuration ----------------------------------------------------------------------------------------


def test_current_is_the_used_configuration_else_the_found_one(tmp_path: Path) -> None:
    assert current().run.name == "default"
    assert current() is current()
    (tmp_path / "tmrl_core.yaml").write_text("run: {name: one}\n", encoding="utf-8")
    assert current().run.name == "one"
    (tmp_path / "tmrl_core.yaml").write_text("run: {name: another}\n", encoding="utf-8")
    assert current().run.name == "another"
    use(from_values({"run": {"name": "used"}}))
    try:
        assert current().run.name == "used"
    finally:
        use(None)
    assert current().run.name == "another"


def test_current_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current().server.port == Config().server.port
    monkeypatch.setenv("TMRL_CORE_SERVER_PORT", "4000")
    assert current().server.port == 4000


def test_the_sentinel_of_omitted_arguments() -> None:
    assert repr(CFG) == "cfg"
    assert given(CFG, 3) == 3
    assert given(None, 3) is None


# --- structures -------------------------------------------------------------------------------------------------------


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().server.port = 3  # type: ignore[misc]


def test_omitted_security_is_neither_tls_nor_null() -> None:
    assert Config().network.security is UNSET
    assert from_values({"network": {"security": "TLS"}}).network.security == "TLS"
    assert from_values({"network": {"security": None}}).network.security is None


@pytest.mark.parametrize(
    ("host", "bind", "address"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("localhost", None, "localhost"),
        ("::1", None, "::1"),
        ("server.example.org", None, "0.0.0.0"),
        ("server.example.org", "10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_server_listens_beyond_this_machine_only_with_a_public_host(host: str, bind: str, address: str) -> None:
    assert from_values({"server": {"host": host, "bind": bind}}).server.bind_address == address


def test_one_run_name_names_every_file() -> None:
    config = from_values({"run": {"name": "x", "folder": "all"}})
    folder = Path.cwd() / "all" / "x"
    assert config.run_folder == folder
    assert config.worker_model_path == folder / "worker" / "policy.tmod"
    assert config.worker_history_path == str(folder / "worker" / "history" / "policy_")
    assert config.trainer_model_path == folder / "policy.tmod"
    assert config.checkpoint_path == folder / "checkpoint"
    assert config.metrics_path == folder / "metrics.jsonl"
    assert from_values({"checkpoint": {"enabled": False}}).checkpoint_path is None


PATHS: dict[str, dict[str, str]] = {
    "run": {"folder": "all", "name": "x"},
    "worker": {"model_path": "w", "model_path_history": "h/", "record": "r"},
    "network": {"credentials_dir": "keys"},
    "memory": {"folder": "m", "recorded": "s"},
    "trainer": {"model_path": "t", "offline": "o"},
    "checkpoint": {"path": "c"},
}


def paths_of(config: Config) -> list[str]:
    return [
        str(path)
        for path in (
            config.run_folder,
            config.worker_model_path,
            config.worker_history_path,
            config.worker_record_path,
            find_credentials_folder(config),
            config.memory_path,
            config.recorded_path,
            config.trainer_model_path,
            config.offline_path,
            config.checkpoint_path,
            config.metrics_path,
        )
    ]


def test_relative_paths_mean_the_folder_in_which_the_configuration_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = convert(PATHS, "a test")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    names = ["all/x", "w", "h/", "r", "keys", "m", "s", "t", "o", "c", "all/x/metrics.jsonl"]
    assert paths_of(config) == [os.path.join(tmp_path, *name.split("/")) for name in names]
    defaults = ["runs/x", "runs/x/worker/policy.tmod", "runs/x/policy.tmod", "runs/x/memory", "runs/x/checkpoint"]
    changed = with_changes(Config().started_in(tmp_path), ["run.name=x"])
    assert [
        changed.run_folder,
        changed.worker_model_path,
        changed.trainer_model_path,
        changed.memory_path,
        changed.checkpoint_path,
    ] == [tmp_path / path for path in defaults]
    # Absolute paths stay, and what is written and compared does not name the folder, so that runs can be moved.
    absolute = convert({"run": {"folder": str(tmp_path / "far")}}, "a test")
    assert absolute.run_folder == tmp_path / "far" / "default"
    assert convert(PATHS, "a test") == config
    assert str(tmp_path) not in resolved(config)
    stored = plain(from_values({"run": {"seed": 1}}))
    assert (
        in_force(stored, from_values({"run": {"seed": 2}}).started_in(tmp_path)).run_folder.parent == tmp_path / "runs"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a process's working folder")
def test_a_configuration_can_be_changed_in_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert with_changes(config, ["run.name=x"]).run_folder == tmp_path / "runs" / "x"


def test_the_resolved_configuration_loads_again(tmp_path: Path) -> None:
    config = load(ROOT / "config" / "pendulum_sac_synchronous.yaml")
    path = tmp_path / "resolved.yaml"
    path.write_text(resolved(config), encoding="utf-8")
    assert load(path) == config


# --- files that come with the project ---------------------------------------------------------------------------------


@functools.cache
def schema_check() -> jsonschema.Draft202012Validator:
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_each_ready_file_loads_and_fits_the_schema(path: Path) -> None:
    config = load(path)
    assert configuration.ratios_conflict(config, workers=2, episode_steps=200) is None
    schema_check().validate(read_document(path))


def test_the_schema_and_loading_refuse_the_same_values() -> None:
    for values in ({"server": {"prot": 1}}, {"server": {"port": "x"}}, {"worker": {"collection": "x"}}):
        with pytest.raises(jsonschema.ValidationError):
            schema_check().validate(values)


def test_the_ready_files_exist() -> None:
    names = [path.name for path in READY]
    assert {"cartpole_ppo.yaml", "pendulum_sac.json", "pendulum_sac.yaml", "three_machines.yaml"} <= set(names)


def test_json_and_yaml_give_the_same_configuration() -> None:
    assert load(ROOT / "config" / "pendulum_sac.json") == load(ROOT / "config" / "pendulum_sac.yaml")


def test_the_page_of_all_keys_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "configuration_docs.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_page_does_not_claim_that_encryption_is_off_by_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `security` |")]
    assert row.split("|")[3].strip() == "left out"


def test_importing_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmrl_core.yaml").write_text("broken: [", encoding="utf-8")
    code = "import sys; import tmrl_core.config; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_custom_environment_gets_no_keyword_arguments_of_the_built_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("environment: {cls: my_package.envs:Robot}", encoding="utf-8")
    assert load(path, environ={}).environment.kwargs == {}
    assert load(path, ["environment.kwargs.camera=front"], {}).environment.kwargs == {"camera": "front"}
    path.write_text("environment: {cls: my_package.envs:Robot, kwargs: {camera: side}}", encoding="utf-8")
    assert load(path, environ={}).environment.kwargs == {"camera": "side"}
    path.write_text("{}", encoding="utf-8")
    assert load(path, ["environment.cls=my_package.envs:Robot"], {}).environment.kwargs == {}
    assert (
        load(path, ["environment.cls=tmrl_core.envs:GenericGymEnv"], {}).environment == load(path, [], {}).environment
    )


def test_only_the_built_in_environment_has_a_default_rate_limit(tmp_path: Path) -> None:
    def steps(text: str, *overrides: str, built_in: bool = True) -> float | None:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, overrides, {}, built_in=built_in).worker.max_env_steps_per_update

    assert steps("run: {name: mine}") == 2.0
    assert steps("worker: {max_env_steps_per_update: null}") is None
    assert steps("{}", "worker.max_env_steps_per_update=null") is None
    assert steps("environment: {cls: my_package.envs:Robot}") is None
    assert steps("{}", "environment.cls=my_package.envs:Robot") is None
    assert steps("{}", built_in=False) is None
    assert current().worker.max_env_steps_per_update is None, "a script has an environment of its own"
    assert Config().worker.max_env_steps_per_update is None


@pytest.mark.parametrize("digits", [20, 400, 4000])
@pytest.mark.parametrize("key", ["network.max_message_bytes", "memory.capacity", "trainer.steps", "run.seed"])
def test_numbers_beyond_the_range_of_counters_are_refused(key: str, digits: int) -> None:
    section, name = key.split(".")
    with pytest.raises(ConfigError, match=rf"{key}: found .*, allowed: "):
        from_values({section: {name: 10**digits - 1}})


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"memory": {"recorded": "a", "shares": {"demonstrations": 1}}}, "memory.shares.demonstrations: 1 leaves no"),
        ({"memory": {"shares": {"online": 0.6}}}, "is 0.6; allowed: shares whose sum is 1"),
        (
            {"memory": {"recorded": "a", "shares": {"online": 1}}},
            "memory.shares.demonstrations: 0, and memory.recorded",
        ),
        (
            {"memory": {"recorded": "a", "shares": {"online": 0.999, "demonstrations": 0.001}}},
            "memory.shares.demonstrations: 0.001 of memory.batch_size = 256 rows is less than one",
        ),
        (
            {"memory": {"shares": {"online": 0.5, "interventions": 0.5}}},
            "memory.shares.interventions: 0.5, but nobody takes over: set worker.interventions",
        ),
        (
            {
                "memory": {"shares": {"interventions": 1}, "cls": "tmrl_core.training:SequenceMemory"},
                "worker": {"interventions": {"cls": "a:B"}},
            },
            "memory.shares.interventions: 1 needs transitions",
        ),
        ({"memory": {"recorded": "a", "batch_size": 1}}, "memory.batch_size: 1 leaves no row for recorded sessions"),
        ({"agent": {"kwargs": {"imitation_coef": 1.0}}}, "agent.kwargs.imitation_coef: 1.0, but no row of a batch"),
        ({"worker": {"interventions": {"cls": "a:B"}, "envs": 2}}, "worker.interventions: a person takes over one"),
        ({"memory": {"recorded": "a"}, "trainer": {"offline": "b"}}, "memory.recorded: 'a', but with trainer.offline"),
        ({"memory": {"max_drawn_lag": 3}, "trainer": {"offline": "b"}}, "memory.max_drawn_lag: 3, but with"),
    ],
)
def test_recorded_sessions_contradict_other_settings(values: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(found)):
        from_values(values)


def test_a_round_of_episodes_needs_no_null_for_the_steps() -> None:
    lockstep = from_values({"trainer": {"lockstep": {"episodes_per_round": 4}}}).trainer.lockstep
    assert (lockstep.steps_per_round, lockstep.episodes_per_round) == (None, 4)
    assert (
        from_values(plain(from_values({"trainer": {"lockstep": {"episodes_per_round": 4}}}))).trainer.lockstep
        == lockstep
    )
    lockstep = load(None, ["trainer.lockstep.episodes_per_round=4"], {}).trainer.lockstep
    assert lockstep.steps_per_round is None
