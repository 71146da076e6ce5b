"""The interface between our models and lm-evaluation-harness. Importing this module needs the harness.

Scores equal those of the harness's own `hf` model with the same weights. The conventions are GPT-2's: an
end-of-text token precedes an empty context and a text that is scored whole, texts that are too long lose
their beginning, and the name of that token in a prompt is the token.
"""

import json
from collections import defaultdict
from collections.abc import Iterator

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from decoding.decoder import Decoder
from evaluation import EvaluationError
from evaluation.models import Loaded
from kernels.linear_cross_entropy import IGNORED
from models.cache import Cache
from models.language_model import sample_token

MOST_NEW_TOKENS = 256  # default of the harness, for tasks that set no limit
SEED = 1234  # for sampling; the harness's seed


class HarnessModel(TemplateLM):
    """Answers the harness's three kinds of requests with a Loaded model, `batch_size` sequences at a time.

    Raises EvaluationError before the model runs if a task requires something that the model cannot do.
    """

    def __init__(self, loaded: Loaded, batch_size: int):
        super().__init__()
        self.loaded, self.decoder = loaded, Decoder(loaded.model)
        self.batch_size = batch_size
        self.max_length = loaded.block_size
        self._device = loaded.device

    @property
    def eot_token_id(self) -> int:
        return self.loaded.end_of_text

    def tok_encode(self, string, add_special_tokens=None, **_) -> list[int]:
        tokenizer = self.loaded.tokenizer
        first, *others = map(tokenizer.encode, string.split(tokenizer.end_token))
        return first + [token for piece in others for token in (self.eot_token_id, *piece)]

    # --- the likelihood of a continuation, and whether greedy decoding would give it ---

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **_) -> list[tuple[float, bool]]:
        """requests: ((context, continuation), context tokens, continuation tokens) -> (nats, greedy).

        A context with several continuations is read once, into a cache. Continuations that differ in their
        last token only share one row, because the last token is never read.
        """
        rows = defaultdict(list)  # tokens that are read -> [(number of the request, continuation)]
        for number, (texts, context, continuation) in enumerate(requests):
            self._check_continuation(texts, continuation)
            # the harness takes blanks at the end of a context for a part of the continuation
            context = context or [self.prefix_token_id]
            read = (context + continuation)[-(self.max_length + 1) :][:-1]
            rows[tuple(read)].append((number, continuation))
        # for each row, the number of last tokens whose next tokens are scored
        scored = {read: max(len(c) for _, c in asked) for read, asked in rows.items()}
        answers = [None] * len(requests)
        with tqdm(total=len(requests), desc="loglikelihood", disable=disable_tqdm) as bar:
            for read, logits in self._logits_of_rows(scored):
                log_probabilities = logits.float().log_softmax(-1)
                likeliest = log_probabilities.argmax(-1)
                for number, continuation in rows[read]:
                    there = torch.tensor(continuation, device=logits.device)
                    nats = log_probabilities[-len(there) :].gather(1, there[:, None]).sum()
                    answers[number] = float(nats), bool((likeliest[-len(there) :] == there).all())
                bar.update(len(rows[read]))
        return answers

    def _check_continuation(self, texts, continuation):
        if not continuation:
            raise EvaluationError(
                f"the continuation {texts[1]!r} of {texts[0][-60:]!r} has no token of its own to be scored"
            )
        if len(continuation) > self.max_length:
            raise EvaluationError(
                f"{self.loaded.name}: the continuation that begins with {texts[1][:60]!r} has "
                f"{len(continuation)} tokens, more than block_size={self.max_length}: leave its task out"
            )

    def _logits_of_rows(self, scored: dict[tuple, int]) -> Iterator[tuple[tuple, torch.Tensor]]:
        """{row: n} -> each row with the logits of its last n tokens [n, vocab_size], in another order"""
        groups = defaultdict(list)  # the prefix before the first scored token -> rows
        for read, count in scored.items():
            groups[read[:-count]].append(read)
        shared = {prefix: group for prefix, group in groups.items() if prefix and len(group) > 1}
        single = [read for prefix, group in groups.items() if prefix not in shared for read in group]
        # sorted by length for little padding; the longest first, so that lack of memory shows at once
        for part in _parts(sorted(single, key=len, reverse=True), self.batch_size):
            yield from zip(part, self._logits(part, [scored[read] for read in part]), strict=True)
        for length in sorted({len(prefix) for prefix in shared}, reverse=True):
            # all sequences in a cache have the same length
            of_length = [prefix for prefix in shared if len(prefix) == length]
            for prefixes in _parts(of_length, self.batch_size):
                yield from self._after_prefixes(prefixes, shared)

    def _after_prefixes(self, prefixes, shared) -> Iterator[tuple[tuple, torch.Tensor]]:
        """prefixes: of one length -> each of their rows, with the logits of the tokens after the prefix"""
        length = len(prefixes[0])
        rows = [(number, read) for number, prefix in enumerate(prefixes) for read in shared[prefix]]
        rows.sort(key=lambda row: -len(row[1]))
        cache = self._new_cache(len(prefixes), len(rows[0][1]))
        with self.loaded.autocast():
            self.loaded.model.decode(torch.tensor(prefixes, device=self.device), cache)
        for part in _parts(rows, self.batch_size):
            which = torch.tensor([number for number, _ in part], device=self.device)
            rest = [read[length:] for _, read in part]
            logits = self._logits(rest, [len(read) for read in rest], cache.of_rows(which))
            yield from zip([read for _, read in part], logits, strict=True)

    def _logits(self, rows, counts, cache=None) -> tuple[torch.Tensor, ...]:
        """The logits of the last `count` tokens of each row, [count, vocab_size].

        Padding is on the right, where a causal model's scored tokens do not see it.
        """
        shape = len(rows), max(map(len, rows))
        tokens = torch.full(shape, self.eot_token_id)
        wanted = torch.zeros(shape, dtype=torch.bool)
        for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
            tokens[number, : len(row)] = torch.tensor(row)
            wanted[number, len(row) - count : len(row)] = True
        with self.loaded.autocast():
            logits = self.loaded.model.logits_at(tokens.to(self.device), wanted.to(self.device), cache)
        return logits.split(counts)

    def _new_cache(self, batch, length) -> Cache:
        # without autocast, loaded.dtype is the dtype of the weights
        return self.loaded.model.new_cache(batch, length, getattr(torch, self.loaded.dtype))

    # --- the likelihood of a text ---

    def loglikelihood_rolling(self, requests, disable_tqdm=False) -> list[float]:
        """Nats of each text after an end-of-text token, in windows of block_size.

        Windows do not overlap, except that the last window of a text may overlap with the one before.
        """
        windows = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            for pair in get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1):
                context, scored = make_disjoint_window(pair)
                windows.append((number, context + scored[:-1], scored))
        windows.sort(key=lambda window: -len(window[1]))
        answers = [0.0] * len(requests)
        with tqdm(total=len(windows), desc="loglikelihood_rolling", disable=disable_tqdm) as bar:
            for part in _parts(windows, self.batch_size):
                shape = len(part), len(part[0][1])
                tokens, targets = torch.full(shape, self.eot_token_id), torch.full(shape, IGNORED)
                for row, (_, read, scored) in enumerate(part):
                    tokens[row, : len(read)] = torch.tensor(read)
                    targets[row, len(read) - len(scored) : len(read)] = torch.tensor(scored)
                with self.loaded.autocast():
                    losses = self.loaded.model.token_losses(tokens.to(self.device), targets.to(self.device))
                for (number, *_), nats in zip(part, losses.double().sum(1).tolist(), strict=True):
                    answers[number] -= nats
                bar.update(len(part))
        return answers

    # --- generated text ---

    def generate_until(self, requests, disable_tqdm=False) -> list[str]:
        """Continues each prompt up to a stop sequence, an end-of-text token or the maximum length."""
        alike = defaultdict(list)  # settings of generation -> numbers of requests
        for number, request in enumerate(requests):
            alike[json.dumps(self.settings(request.args[1]), sort_keys=True)].append(number)
        answers = [None] * len(requests)
        with tqdm(total=len(requests), desc="generate_until", disable=disable_tqdm) as bar:
            for key, numbers in alike.items():
                settings = json.loads(key)
                room = self.max_length - settings["max_gen_toks"]
                prompts = {
                    number: self.tok_encode(requests[number].args[0])[-room:] or [self.prefix_token_id]
                    for number in numbers
                }
                for part in _parts(sorted(numbers, key=lambda n: -len(prompts[n])), self.batch_size):
                    written = self._write([prompts[number] for number in part], **settings)
                    for number, text in zip(part, written, strict=True):
                        answers[number] = postprocess_generated_text(text, settings["until"], None)
                    bar.update(len(part))
        return answers

    def settings(self, given: dict, task: str = "a task") -> dict:
        """A task's settings of generation -> keywords of `_write`."""
        settings = dict(normalize_gen_kwargs(given, MOST_NEW_TOKENS))
        settings["until"] = handle_stop_sequences(settings["until"], eos=self.loaded.tokenizer.end_token)
        known = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}
        if unknown := settings.keys() - known:
            raise EvaluationError(
                f"{task} asks for text with {', '.join(sorted(unknown))}, which is not supported: leave "
                "the task out"
            )
        if not 0 < settings["max_gen_toks"] < self.max_length:
            raise EvaluationError(
                f"{self.loaded.name}: {task} asks for {settings['max_gen_toks']} new tokens, which leaves "
                f"no place for its prompt in block_size={self.max_length}: leave the task out"
            )
        if not settings.pop("do_sample"):
            settings["temperature"] = 0.0
        return settings

    @torch.no_grad()
    def _write(
        self,
        prompts: list[list[int]],
        until: list[str],
        max_gen_toks: int,
        temperature=1.0,
        top_k=None,
        top_p=None,
    ) -> list[str]:
        """Continues prompts of different lengths with one cache.

        All sequences in a cache have the same length. So from the end of the shortest prompt on, the batch
        advances together: longer prompts still read their own tokens while shorter ones already generate.
        """
        tokenizer, stops = self.loaded.tokenizer, [stop for stop in until if stop]
        longest_stop = max(len(stop.encode()) for stop in stops)  # and so in tokens, at most
        generator = torch.Generator(self.device).manual_seed(SEED)
        begin, longest = min(map(len, prompts)), max(map(len, prompts))
        cache = self._new_cache(len(prompts), longest + max_gen_toks - 1)
        unread = torch.tensor([prompt[:begin] for prompt in prompts], device=self.device)
        written, open_rows = [[] for _ in prompts], set(range(len(prompts)))
        for place in range(begin, longest + max_gen_toks):
            with self.loaded.autocast():
                # the model's vocabulary may be larger than the tokenizer's
                logits = self.decoder(unread, cache)[:, : tokenizer.vocab_size]
            tokens = sample_token(logits.float(), temperature, top_k, top_p, generator).tolist()
            for row, prompt in enumerate(prompts):
                if place < len(prompt):
                    tokens[row] = prompt[place]
                elif row in open_rows:
                    written[row].append(tokens[row])
                    end = tokenizer.decode(written[row][-longest_stop - 1 :])
                    done = tokens[row] == self.eot_token_id or any(stop in end for stop in stops)
                    if done or place + 1 == len(prompt) + max_gen_toks:
                        open_rows.discard(row)
            if not open_rows:
                break
            unread = torch.tensor(tokens, device=self.device)[:, None]
        return [tokenizer.decode(ids) for ids in written]


def _parts(items: list, size: int) -> Iterator[list]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
