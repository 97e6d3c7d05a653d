from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_core.envs.replay import BaseEnvironment, FunctionalEnv

BATCH = 5


class Identity(BaseEnvironment):
    """New state = observation = old state."""

    def __init__(self) -> None:
        super().__init__((3,), (3,), ())

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
        return last_states, last_states


class Counter(BaseEnvironment):
    """A position that the action moves, and the number of moves; observed are both, as floats, and a picture."""

    def __init__(self) -> None:
        super().__init__([(2,), ()], [3, (1, 4)], [(2,)], ["float32", "int32"], None, "float32")
        self.calls = 0

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
        self.calls += 1
        position, moves = last_states[0] + actions[0] * kwargs.get("speed", 1.0), last_states[1] + 1
        picture = position.sum(dim=1).reshape(-1, 1, 1).expand(-1, 1, 4)
        return [position, moves], [torch.cat([position, moves[:, None]], dim=1), picture]


# --- declaration ------------------------------------------------------------------------------------------------------


def test_the_six_arguments_are_public_attributes() -> None:
    env = BaseEnvironment([(2,), ()], [(3, 64, 64)], [()], ["float64", "int64"], ["uint8"], ["int16"])
    assert env.state_shapes == [(2,), ()]
    assert env.observation_shapes == [(3, 64, 64)]
    assert env.action_shapes == [()]
    assert env.state_dtypes == ["float64", "int64"]
    assert env.observation_dtypes == ["uint8"]
    assert env.action_dtypes == ["int16"]


def test_default_dtypes() -> None:
    env = BaseEnvironment([(2,), (3,)], (4,), ())
    assert env.state_dtypes == ["float32"] * 2
    assert env.observation_dtypes == ["float32"]
    assert env.action_dtypes == ["int32"]


@pytest.mark.parametrize(
    ("given", "shapes"),
    [
        (3, [(3,)]),
        ((3,), [(3,)]),
        ([3, 210, 160], [(3, 210, 160)]),
        ((), [()]),
        ([()], [()]),
        ([(3,), ()], [(3,), ()]),
        ([[3, 4], 5], [(3, 4), (5,)]),
        (torch.Size([3, 4]), [(3, 4)]),
    ],
)
def test_one_shape_or_a_list_of_them(given: Any, shapes: list[tuple[int, ...]]) -> None:
    assert BaseEnvironment(given, 1, given).state_shapes == shapes
    assert BaseEnvironment(1, 1, given).action_shapes == shapes


@pytest.mark.parametrize("given", ["(3,)", [-1], True, [(3, None)], None, 2.0])
def test_other_shapes_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"observation_shapes is .*; allowed: one shape, such as \(3, 64, 64\)"):
        BaseEnvironment(1, given, 1)


def test_an_environment_has_a_state_and_an_observation() -> None:
    with pytest.raises(ValueError, match="state_shapes or observation_shapes is empty"):
        BaseEnvironment([], 1, 1)
    with pytest.raises(ValueError, match="state_shapes or observation_shapes is empty"):
        BaseEnvironment(1, [], 1)
    assert BaseEnvironment(1, 1, []).action_dtypes == []


def test_dtypes_of_numpy_and_torch_and_their_names() -> None:
    env = BaseEnvironment([(1,)] * 3, 1, [(), ()], [np.float64, torch.int64, "bool"], torch.float16, "int8")
    assert env.state_dtypes == ["float64", "int64", "bool"]
    assert env.observation_dtypes == ["float16"]
    assert env.action_dtypes == ["int8", "int8"]


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="state_dtypes has 2 entries for 1 shapes"):
        BaseEnvironment(1, 1, 1, ["int32", "int32"])
    with pytest.raises(ValueError, match="action_dtypes is 'real'; allowed: dtypes of NumPy or torch"):
        BaseEnvironment(1, 1, 1, action_dtypes="real")


# --- results ----------------------------------------------------------------------------------------------------------


def test_the_base_class_has_no_results() -> None:
    with pytest.raises(NotImplementedError, match=r"BaseEnvironment has no get_action_results\(last_states, actions"):
        BaseEnvironment(1, 1, 1).get_action_results([torch.zeros(1, 1)], [torch.zeros(1, 1)])


def test_identity() -> None:
    state, action = torch.randn(BATCH, 3), torch.zeros(BATCH, dtype=torch.int32)
    new_states, observations = Identity().checked_action_results([state], [action])
    assert torch.equal(new_states[0], state)
    assert torch.equal(observations[0], state)


def test_the_beginning_is_zeros_by_default_alive_and_without_reward() -> None:
    env = Counter()
    states, observations = env.get_initial_results(2)
    assert [(each.shape, each.dtype) for each in states] == [((2, 2), torch.float32), ((2,), torch.int32)]
    assert [each.shape for each in observations] == [(2, 3), (2, 1, 4)]
    assert not any(each.any() for each in [*states, *observations])
    assert env.get_rewards(states, [], states).tolist() == [0.0, 0.0]
    assert env.get_is_alive(states).tolist() == [1, 1]


def test_results_have_the_declared_dtypes() -> None:
    states, observations = Counter().checked_action_results(
        [torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)], [torch.ones(2, 2).double()]
    )
    assert [each.dtype for each in [*states, *observations]] == [torch.float32, torch.int32, *[torch.float32] * 2]


@pytest.mark.parametrize(
    ("states", "actions", "message"),
    [
        ([torch.zeros(2, 3)], [], "found 0 tensors as actions; the environment declares 1"),
        ([], [torch.zeros(2)], "found 0 tensors as last states; the environment declares 1"),
        ([torch.zeros(2, 4)], [torch.zeros(2)], r"last state 0 has the shape \(2, 4\); expected \(2, 3\)"),
        ([torch.zeros(2, 3)], [torch.zeros(2, 1)], r"action 0 has the shape \(2, 1\); expected \(2,\)"),
        ([torch.zeros(2, 3)], [torch.zeros(3)], r"action 0 has the shape \(3,\); expected \(2,\)"),
        (
            [torch.zeros(2, 3)],
            [torch.full((2,), 0.5)],
            r"action 0 is torch.float32 with values that the declared int32 cannot hold. Declare another",
        ),
    ],
)
def test_values_that_differ_from_the_declaration_are_refused(states: Any, actions: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Identity().checked_action_results(states, actions)


class Wrong(Identity):
    def __init__(self, results: Any) -> None:
        super().__init__()
        self.results = results

    def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
        return self.results


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (([], [torch.zeros(2, 3)]), "found 0 tensors as new states; the environment declares 1"),
        (([torch.zeros(2, 3)], [torch.zeros(2, 3)] * 2), "found 2 tensors as observations; the environment declares 1"),
        (([torch.zeros(2, 3)], [torch.zeros(3)]), r"observation 0 has the shape \(3,\); expected \(2, 3\)"),
    ],
)
def test_results_that_do_not_fit_the_declaration_are_refused(results: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Wrong(results).checked_action_results([torch.zeros(2, 3)], [torch.zeros(2)])


# --- layers -----------------------------------------------------------------------------------------------------------


class Constant(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value, requires_grad=value.is_floating_point())
        self.calls = 0

    def forward(self) -> Tensor:
        self.calls += 1
        return self.value


def test_layers_of_the_identity_take_the_tensors() -> None:
    new_states, observations = Identity().as_layers()
    assert [len(new_states), len(observations)] == [1, 1]
    assert all(isinstance(layer, nn.Module) for layer in [*new_states, *observations])
    state = torch.randn(BATCH, 3)
    for layer in (*new_states, *observations):
        assert torch.equal(layer(state, torch.zeros(BATCH, dtype=torch.int32)), state)


def test_layers_are_in_declared_order() -> None:
    env = Counter()
    (position, moves), (vector, picture) = env.as_layers()
    inputs = torch.ones(BATCH, 2), torch.full((BATCH,), 4, dtype=torch.int32), torch.full((BATCH, 2), 0.5)
    assert position(*inputs).tolist() == [[1.5, 1.5]] * BATCH
    assert moves(*inputs).tolist() == [5] * BATCH
    assert vector(*inputs).tolist() == [[1.5, 1.5, 5.0]] * BATCH
    assert picture(*inputs).shape == (BATCH, 1, 4)
    assert position(*inputs, speed=2.0).tolist() == [[2.0, 2.0]] * BATCH


def test_inputs_are_a_module_a_list_of_them_or_none() -> None:
    state, action = torch.randn(BATCH, 3), torch.zeros(BATCH, dtype=torch.int32)
    for given in (Constant(state), [Constant(state)]):
        assert torch.equal(Identity().as_layers(given)[0][0](action), state)
    assert torch.equal(Identity().as_layers(action_layers=Constant(action))[0][0](state), state)
    assert torch.equal(Identity().as_layers(Constant(state), [Constant(action)])[1][0](), state)


def test_further_arguments_are_those_of_the_given_modules() -> None:
    env = Counter()
    policy = nn.Linear(3, 2)
    (position, _), _ = env.as_layers(action_layers=policy)
    states, obs = (torch.zeros(BATCH, 2), torch.zeros(BATCH, dtype=torch.int32)), torch.randn(BATCH, 3)
    assert torch.equal(position(*states, obs), policy(obs))


def test_the_name_is_that_of_the_submodule_with_the_step() -> None:
    layer = Identity().as_layers(Constant(torch.zeros(2, 3)))[0][0]
    assert [name for name, _ in layer.named_children()] == ["EnvironmentLayer"]
    named = Identity().as_layers(Constant(torch.zeros(2, 3)), environment_layer_name="world")[1][0]
    assert list(named.state_dict()) == ["world.prev_states.0.value"]


def test_an_environment_that_is_a_module_has_its_parameters_in_the_layers() -> None:
    class Learned(BaseEnvironment, nn.Module):
        def __init__(self) -> None:
            super().__init__((3,), (3,), (3,), action_dtypes="float32")
            self.model = nn.Linear(6, 3)

        def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
            state = self.model(torch.cat([last_states[0], actions[0]], dim=1))
            return [state], [state]

    env = Learned()
    layer = env.as_layers()[0][0]
    assert {id(each) for each in layer.parameters()} == {id(each) for each in env.parameters()}
    layer(torch.randn(2, 3), torch.randn(2, 3)).sum().backward()
    assert env.model.weight.grad is not None


def test_gradients_flow_through_floats_and_stay_out_of_integer_states() -> None:
    position, moves, action = Constant(torch.ones(2, 2)), Constant(torch.zeros(2).int()), Constant(torch.ones(2, 2))
    (new_position, new_moves), (vector, _) = Counter().as_layers([position, moves], action)
    assert not new_moves().requires_grad
    (new_position().sum() + vector().sum()).backward()
    assert position.value.grad is not None
    assert action.value.grad is not None
    assert position.value.grad.tolist() == [[2.0, 2.0]] * 2
    assert moves.value.grad is None


def test_integer_states_that_a_module_computes_as_floats_are_constants() -> None:
    count = Constant(torch.zeros(2))  # float32, declared int32
    (_, moves), _ = Counter().as_layers([Constant(torch.ones(2, 2)), count], Constant(torch.ones(2, 2)))
    assert moves().tolist() == [1, 1]
    assert not moves().requires_grad


class Policy(nn.Module):
    def __init__(self, observation: nn.Module) -> None:
        super().__init__()
        self.observation, self.linear = observation, nn.Linear(3, 2)

    def forward(self, *inputs: Tensor) -> Any:
        return self.linear(self.observation(*inputs))


def test_a_chain_computes_each_step_once() -> None:
    """Each action depends on an observation, so that without care each step would double the work."""
    env = Counter()
    state = [Constant(torch.zeros(2, 2)), Constant(torch.zeros(2).int())]
    layers = env.as_layers(state, Constant(torch.ones(2, 2)))
    for _ in range(20):
        layers = env.as_layers(layers[0], Policy(layers[1][0]))
    layers[0][1]()
    assert env.calls == 21
    assert state[0].calls == 1
    assert layers[0][1]().tolist() == [21, 21]
    assert env.calls == 42


def test_a_chain_of_steps_equals_the_steps() -> None:
    env = Counter()
    first = env.as_layers()
    second = env.as_layers(prev_state_layers=first[0])
    inputs = [torch.randn(2, 2), torch.zeros(2).int(), torch.randn(2, 2)]
    action = torch.randn(2, 2)
    states, _ = env.checked_action_results(inputs[:2], inputs[2:])
    states, observations = env.checked_action_results(states, [action])
    assert torch.equal(second[1][0](action, *inputs), observations[0])


def test_wrong_numbers_of_modules_and_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="prev_state_layers has 1 modules; the environment declares 2"):
        Counter().as_layers(nn.Identity())
    with pytest.raises(ValueError, match="action_layers has 2 modules; the environment declares 1"):
        Counter().as_layers(None, [nn.Identity()] * 2)
    with pytest.raises(ValueError, match="found 2 tensors; expected 2 states, then 1 actions"):
        Counter().as_layers()[0][0](torch.zeros(2, 2), torch.zeros(2).int())


# --- Gymnasium's functional API ---------------------------------------------------------------------------------------


class Goal(Counter):
    """Reward: the sum of the position; ends after two moves."""

    def get_rewards(self, last_states: list[Tensor], actions: list[Tensor], new_states: list[Tensor]) -> Tensor:
        return new_states[0].sum(dim=1)

    def get_is_alive(self, states: list[Tensor]) -> Tensor:
        return states[1] < 2


def test_the_bridge_follows_gymnasium() -> None:
    bridge = FunctionalEnv(Goal(), batch_size=2)
    assert isinstance(bridge.observation_space, spaces.Tuple)
    assert bridge.single_action_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert bridge.action_space.shape == (2, 2)
    rng = torch.Generator().manual_seed(0)
    state = bridge.initial(rng)
    for step in range(2):
        assert not bridge.terminal(state, rng).any()
        action = bridge.action_space.sample()
        after = bridge.transition(state, action, rng)
        observation = bridge.observation(after, rng)
        assert torch.equal(observation[0][:, :2], after.states[0])
        assert bridge.observation_space.contains(tuple(np.asarray(each) for each in observation))
        assert torch.equal(bridge.reward(state, action, after, rng), after.states[0].sum(dim=1))
        assert after.states[1].tolist() == [step + 1] * 2
        state = after
    assert bridge.terminal(state, rng).all()
    assert bridge.state_info(state) == {}


def test_the_bridge_passes_params_and_the_generator_on() -> None:
    class Noisy(Counter):
        def get_action_results(self, last_states: list[Tensor], actions: list[Tensor], **kwargs: Any) -> Any:
            noise = torch.randn(last_states[0].shape, generator=kwargs.pop("rng"))
            return super().get_action_results([last_states[0] + noise, last_states[1]], actions, **kwargs)

    bridge = FunctionalEnv(Noisy())
    state, action = bridge.initial(), torch.ones(1, 2)
    after = bridge.transition(state, action, torch.Generator().manual_seed(0), {"speed": 3.0})
    noise = torch.randn((1, 2), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(after.states[0], noise + 3.0)


def test_the_bridge_gives_the_only_observation_itself_and_keeps_gradients() -> None:
    bridge = FunctionalEnv(Identity(), batch_size=2)
    start = bridge.initial()
    state = start._replace(states=[torch.ones(2, 3, requires_grad=True)])
    after = bridge.transition(state, torch.zeros(2, dtype=torch.int32))
    observation = bridge.observation(after)
    observation.sum().backward()
    assert state.states[0].grad is not None
    assert bridge.observation_space.shape == (2, 3)
    assert bridge.single_action_space == spaces.Box(-(2**31), 2**31 - 1, (), np.int32)
