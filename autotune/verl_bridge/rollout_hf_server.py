"""The sampling server of the rollout ``hf``: a transformers model in a Ray actor.

Runs in a Ray actor of its own, one for each rollout replica. It imports torch and transformers but
not verl, whose import would double the start-up. Requests that arrive together are sampled as one
left-padded batch.

Sampling is reproducible: a request's random numbers depend only on the seed, the weights' version,
the prompt and how many times this prompt was asked for since those weights arrived, never on which
requests shared its batch.
"""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from autotune.verl_bridge.job_processes import register_stack_dump
from autotune.verl_bridge.token_output import HFTokenOutput

GATHER_S = 0.02
"""How long the first request of a batch waits for others."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the server needs to know of verl's rollout configuration, as plain values."""

    model_path: str
    response_length: int
    """Largest number of new tokens, where a request names none."""
    max_num_seqs: int
    """Largest number of sequences in one batch."""
    ignore_eos: bool
    seed: int
    num_threads: int
    trust_remote_code: bool


@dataclass(frozen=True, kw_only=True)
class _Request:
    prompt_ids: list[int]
    temperature: float
    """0 means greedy."""
    top_p: float
    top_k: int
    """Below 1 means all tokens."""
    max_tokens: int
    seed: int


_Waiting = tuple[_Request, asyncio.Future[Any]]


class HFServer:
    """Samples from a model whose weights the actor pushes; verl calls ``generate``, the adapter
    ``update_weights``."""

    def __init__(self, settings: ServerSettings) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        register_stack_dump()
        torch.set_num_threads(settings.num_threads)
        self._settings = settings
        config = AutoConfig.from_pretrained(
            settings.model_path, trust_remote_code=settings.trust_remote_code
        )
        self._model = AutoModelForCausalLM.from_config(
            config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            trust_remote_code=settings.trust_remote_code,
        ).eval()
        self._tensors = self._model.state_dict()
        eos = config.eos_token_id
        self._eos_ids = set(eos) if isinstance(eos, list) else {eos}
        self._pad_id = config.pad_token_id or 0
        self._version = -1
        self._times_asked: Counter[tuple[int, ...]] = Counter()
        self._queue: asyncio.Queue[_Waiting] | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._in_flight = 0

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        **_unused: Any,
    ) -> HFTokenOutput:
        """Return the sampled response to one prompt."""
        if self._queue is None:
            self._queue = asyncio.Queue()
            self._loop_task = asyncio.create_task(self._serve())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._in_flight += 1
        try:
            await self._queue.put((self._request(list(prompt_ids), sampling_params), future))
            return await future
        finally:
            self._in_flight -= 1

    def _request(self, prompt_ids: list[int], params: dict[str, Any]) -> _Request:
        key = tuple(prompt_ids)
        times = self._times_asked[key]
        self._times_asked[key] += 1
        text = f"{self._settings.seed}/{self._version}/{times}/{key}".encode()
        limit = (
            params.get("max_tokens")
            or params.get("max_new_tokens")
            or self._settings.response_length
        )
        return _Request(
            prompt_ids=prompt_ids,
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=int(params.get("top_k", -1)),
            max_tokens=int(limit),
            seed=int.from_bytes(hashlib.sha256(text).digest()[:7], "big"),
        )

    async def _serve(self) -> None:
        assert self._queue is not None
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(GATHER_S)
            while not self._queue.empty() and len(batch) < self._settings.max_num_seqs:
                batch.append(self._queue.get_nowait())
            try:
                outputs = await asyncio.to_thread(self._sample, [request for request, _ in batch])
                for (_, future), output in zip(batch, outputs, strict=True):
                    future.set_result(output)
            except BaseException as error:
                # Whoever waits must hear of it, whatever it is: the requests of this batch and
                # those behind it would otherwise wait for ever.
                self._fail(error, batch)
                if not isinstance(error, Exception):
                    raise

    def _fail(self, error: BaseException, batch: list[_Waiting]) -> None:
        assert self._queue is not None
        while not self._queue.empty():
            batch.append(self._queue.get_nowait())
        for request, future in batch:
            if not future.done():
                cause = RuntimeError(
                    f"sampling {len(request.prompt_ids)} prompt tokens failed: "
                    f"{type(error).__name__}: {error}"
                )
                cause.__cause__ = error
                future.set_exception(cause)

    @torch.no_grad()
    def _sample(self, requests: list[_Request]) -> list[HFTokenOutput]:
        # B: requests, T: prompt width, V: vocabulary
        if self._version < 0:
            raise RuntimeError(
                "the rollout was asked to generate before the actor's weights arrived"
            )
        num, width = len(requests), max(len(request.prompt_ids) for request in requests)
        ids_BT = torch.full((num, width), self._pad_id)
        mask_BT = torch.zeros((num, width), dtype=torch.long)
        for row, request in enumerate(requests):
            ids_BT[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask_BT[row, width - len(request.prompt_ids) :] = 1
        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        log_probs: list[list[float]] = [[] for _ in requests]
        open_rows = set(range(num))
        cache, current, positions = None, ids_BT, (mask_BT.cumsum(1) - 1).clamp(min=0)
        while open_rows:
            output = self._model(
                input_ids=current,
                attention_mask=mask_BT,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            next_ids = torch.full((num,), self._pad_id)
            for row in sorted(open_rows):
                request = requests[row]
                token, log_prob = _draw(output.logits[row, -1].float(), request, generators[row])
                next_ids[row] = token
                tokens[row].append(token)
                log_probs[row].append(log_prob)
                ended = token in self._eos_ids and not self._settings.ignore_eos
                if ended or len(tokens[row]) >= request.max_tokens:
                    open_rows.remove(row)
            current = next_ids.unsqueeze(1)
            mask_BT = torch.cat([mask_BT, torch.ones((num, 1), dtype=torch.long)], dim=1)
            positions = mask_BT.sum(1, keepdim=True) - 1
        return [self._output(*pair) for pair in zip(tokens, log_probs, strict=True)]

    def _output(self, token_ids: list[int], log_probs: list[float]) -> HFTokenOutput:
        return HFTokenOutput(
            token_ids=token_ids,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self._version},
        )

    async def update_weights(
        self, named_tensors: list[tuple[str, Any]], is_last: bool, global_steps: int | None
    ) -> None:
        """Copy tensors into the model; the last call of a synchronisation gives them their
        version."""
        await self._drain()
        with torch.no_grad():
            for name, tensor in named_tensors:
                self._tensors[name].copy_(torch.as_tensor(tensor))
        if is_last:
            self._version = global_steps if global_steps is not None else self._version + 1
            self._times_asked.clear()

    async def _drain(self) -> None:
        while self._in_flight:
            await asyncio.sleep(0.005)

    async def sleep(self) -> None:
        """Wait for running requests; there is no device memory to give back."""
        await self._drain()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Nothing to take back; see :meth:`sleep`."""

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        await self._drain()

    async def resume_generation(self) -> None:
        """Generation was never stopped."""

    async def clear_kv_cache(self) -> None:
        """No cache outlives a batch."""

    async def release_kv_cache(self) -> None:
        """No cache outlives a batch."""

    async def resume_kv_cache(self) -> None:
        """No cache outlives a batch."""

    async def start_profile(self, **_unused: Any) -> None:
        """verl's own profiler does not reach into this server."""

    async def stop_profile(self) -> None:
        """See :meth:`start_profile`."""


def _draw(
    logits_V: torch.Tensor, request: _Request, generator: torch.Generator
) -> tuple[int, float]:
    """Return a token and its log-probability under the temperature, as verl's actor computes it."""
    if request.temperature == 0:
        log_probs_V = torch.log_softmax(logits_V, dim=-1)
        token = int(log_probs_V.argmax())
        return token, float(log_probs_V[token])
    log_probs_V = torch.log_softmax(logits_V / request.temperature, dim=-1)
    token = int(torch.multinomial(_truncate(log_probs_V.exp(), request), 1, generator=generator))
    return token, float(log_probs_V[token])


def _truncate(probs_V: torch.Tensor, request: _Request) -> torch.Tensor:
    """Zero what top-k and top-p (nucleus sampling) leave out."""
    if 0 < request.top_k < len(probs_V):
        smallest = probs_V.topk(request.top_k).values[-1]
        probs_V = torch.where(probs_V >= smallest, probs_V, torch.zeros_like(probs_V))
    if request.top_p < 1.0:
        ordered, order = probs_V.sort(descending=True)
        beyond = ordered.cumsum(0) - ordered > request.top_p * ordered.sum()
        probs_V = probs_V.clone()
        probs_V[order[beyond]] = 0.0
    return probs_V
