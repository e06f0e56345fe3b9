"""The sampling server of the rollout ``hf``: whoever asks gets an answer or an error."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.verl_bridge.rollout_hf_server import HFServer, ServerSettings

ROOT = Path(__file__).parents[2]
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("demo") / "tiny"
    subprocess.run(
        [sys.executable, "scripts/make_demo_assets.py", "--out", str(folder)], cwd=ROOT, check=True
    )
    return str(folder / "model")


@pytest.fixture(scope="module")
def server(model_path: str) -> HFServer:
    return HFServer(settings(model_path, max_num_seqs=8))


def settings(model_path: str, *, max_num_seqs: int) -> ServerSettings:
    return ServerSettings(
        model_path=model_path,
        response_length=4,
        max_num_seqs=max_num_seqs,
        ignore_eos=True,
        seed=1,
        num_threads=1,
        trust_remote_code=False,
    )


class Counting(HFServer):
    """Says how many sequences it sampled at once."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings)
        self.sizes: list[int] = []

    def _sample(self, requests: list[Any]) -> list[Any]:
        self.sizes.append(len(requests))
        return super()._sample(requests)


def ask(server: HFServer, *prompts: list[Any]) -> list[Any]:
    """Ask for all prompts at once; errors stand among the answers."""

    async def run() -> list[Any]:
        server._queue = None  # each asyncio.run is a loop of its own
        await server.update_weights([], is_last=True, global_steps=0)
        requests = [server.generate("id", prompt, {}) for prompt in prompts]
        return list(await asyncio.gather(*requests, return_exceptions=True))

    return asyncio.run(asyncio.wait_for(run(), timeout=60))


def test_a_prompt_gets_its_tokens(server: HFServer) -> None:
    (output,) = ask(server, PROMPT)
    assert len(output.token_ids) == len(output.log_probs) == 4
    assert output.extra_fields == {"global_steps": 0}


@pytest.mark.parametrize(("max_num_seqs", "most"), [(1, 1), (2, 2), (8, 5)])
def test_no_more_sequences_are_sampled_at_once_than_allowed(
    model_path: str, max_num_seqs: int, most: int
) -> None:
    counting = Counting(settings(model_path, max_num_seqs=max_num_seqs))
    assert len(ask(counting, *[PROMPT] * 5)) == sum(counting.sizes) == 5
    assert max(counting.sizes) == most


def test_equal_prompts_of_one_version_get_their_own_random_numbers(server: HFServer) -> None:
    first, second = ask(server, PROMPT, PROMPT)
    assert first.token_ids != second.token_ids
    assert [output.token_ids for output in ask(server, PROMPT, PROMPT)] == [
        first.token_ids,
        second.token_ids,
    ]


@pytest.mark.parametrize("broken", [["no token"], [10**9]])
def test_every_request_of_a_batch_that_breaks_hears_why(
    server: HFServer, broken: list[Any]
) -> None:
    answers = ask(server, PROMPT, broken, PROMPT)
    assert all(isinstance(answer, RuntimeError) for answer in answers)
    assert "sampling" in str(answers[0]) and "failed: " in str(answers[0])


def test_a_broken_batch_does_not_break_the_next_one(server: HFServer) -> None:
    ask(server, ["no token"])
    (output,) = ask(server, PROMPT)
    assert len(output.token_ids) == 4
