"""CoFrGeNetForCausalLM: any model of ours behind the interface of Hugging Face's transformers."""

import contextlib
import sys
from dataclasses import dataclass

import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from layers.protocol import Drawn, Part
from model import GPT
from models.architecture import ModelConfig, model_config
from models.cache import Cache
from remote_code.configuration_cofrgenet import CoFrGeNetConfig


class CoFrGeNetForCausalLM(PreTrainedModel, GenerationMixin):
    """`model` is the GPT. Load with `from_pretrained`, which accepts no missing weight.

    Mixers know no masks. Rows of a batch are computed in groups that have the same number of padding
    tokens before the text, without the padding: so rows are what they would be alone, and a batch with n
    different lengths costs n calls of the model.
    """

    config_class = CoFrGeNetConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _no_split_modules = ("GPT",)
    _is_stateful = True  # a cache cannot go back, so there is no assisted generation
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        with one_device():
            self.model = GPT(model_config(ModelConfig.of_this_version(config.model)), try_out=False)
        self.post_init()

    def init_weights(self):
        """Draws all weights as training does; on the meta device there is nothing to draw."""
        if not self.model.embedding.weight.is_meta:
            self.model.init_weights()

    def _init_weights(self, module):
        """transformers calls this for single modules; `init_weights` draws the model as a whole."""

    @classmethod
    def from_pretrained(cls, *arguments, output_loading_info=False, **keys):
        """As in transformers. Raises ValueError where the weights are not those of the configuration."""
        model, info = super().from_pretrained(*arguments, output_loading_info=True, **keys)
        wrong = {what: list(found)[:3] for what, found in info.items() if found}
        if wrong:
            raise ValueError(f"the weights are not those of config.json: {wrong}")
        restore_buffers(model.model)
        return (model, info) if output_loading_info else model

    def get_input_embeddings(self):
        return self.model.embedding

    def get_output_embeddings(self):
        """None where the head is the embedding: there is nothing to tie."""
        return None if self.model.config.tie_embeddings else self.model.head

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None, **_):
        """In training, keep only the blocks' inputs for the backward pass (torch.utils.checkpoint without
        re-entrance, whatever the arguments say).
        """
        self.model.activation_checkpointing = True

    def gradient_checkpointing_disable(self):
        self.model.activation_checkpointing = False

    @property
    def is_gradient_checkpointing(self):
        return self.model.activation_checkpointing

    def resize_token_embeddings(self, new_num_tokens=None, *_, **__):
        if new_num_tokens not in (None, self.config.vocab_size):
            raise ValueError(
                f"the vocabulary has {self.config.vocab_size} tokens and cannot have {new_num_tokens}: use "
                "the tokenizer of this folder, without new tokens"
            )
        return self.model.embedding

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        output_hidden_states=None,
        logits_to_keep=0,
        return_dict=None,
        **others,
    ):
        """input_ids: [B, T] int64 -> logits [B, T, vocab_size]; 0 where the mask hides padding on the left.

        inputs_embeds: [B, T, C] in place of input_ids, such as rows of the embedding.
        output_hidden_states: returns n_layer + 1 tensors [B, T, C] too: what each block reads, and what the
        head reads.

        attention_mask: [B, past + T], 0 for padding before or after the text. labels: [B, T], shifted
        here, -100 where nothing is predicted -> loss, the mean in nats. use_cache: returns the cache of the
        next tokens, without gradients. logits_to_keep: how many last tokens get logits, 0: all. Raises
        ValueError where there is no token, for a mask with holes, for padding that a cache cannot hold, and
        for more tokens than the model can see.
        """
        of_loss = {"num_items_in_batch": others.pop("num_items_in_batch", None)}
        if refused := sorted(
            key for key, value in others.items() if value is not None and value is not False
        ):
            raise ValueError(f"not supported: {', '.join(refused)}; leave it out")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "give input_ids, the tokens [rows, columns], or inputs_embeds [rows, columns, width], "
                "and not both"
            )
        given = input_ids if inputs_embeds is None else inputs_embeds
        if inputs_embeds is not None and self.model.config.value_embeddings:
            raise ValueError("inputs_embeds: this model has value_embeddings, which need input_ids")
        if not given.numel():
            raise ValueError(
                f"input_ids is {list(given.shape)}, without a token: begin with the end-of-text token, "
                "as in training: tokenizer(tokenizer.eos_token). generate does so without input_ids"
            )
        cached = bool(use_cache) or past_key_values is not None
        if past_key_values is not None and not isinstance(past_key_values, GroupedCache):
            raise ValueError(
                f"past_key_values is a {type(past_key_values).__name__}: give what this model returned, or "
                "nothing, and it makes its own"
            )
        if labels is not None and cached:
            raise ValueError(
                "a cache has no gradients: with labels, leave out use_cache and past_key_values"
            )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with torch.set_grad_enabled(torch.is_grad_enabled() and not cached), read_by(self.model) as states:
            if cached:
                past_key_values = past_key_values or GroupedCache.of(self.model, given, attention_mask)
                parts = past_key_values.hidden(self.model, given, attention_mask)
            else:
                parts = hidden(self.model, given, attention_mask)
            h = joined(parts, given)
            logits = self.model.logits(h[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **of_loss
            )
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
        if wanted:
            of_layers = [states[layer :: len(self.model.blocks)] for layer in range(len(self.model.blocks))]
            places = [part[:2] for part in parts]
            layers = (
                joined([(*place, state) for place, state in zip(places, of_layer, strict=True)], given)
                for of_layer in of_layers
            )
            output.hidden_states = (*layers, h)
        return output.to_tuple() if return_dict is False else output

    # --- what `generate` of transformers asks for ---

    def prepare_inputs_for_generation(
        self, input_ids, past_key_values=None, attention_mask=None, next_sequence_length=None,
        inputs_embeds=None, is_first_iteration=None, **others,
    ):  # fmt: skip
        first = past_key_values is None if is_first_iteration is None else is_first_iteration
        if inputs_embeds is not None:
            input_ids = input_ids[:, -1:]  # those of the embeddings are unknown
        elif past_key_values is not None:
            whole = attention_mask is None or attention_mask.shape[1] == input_ids.shape[1]
            if next_sequence_length is None and whole:
                next_sequence_length = input_ids.shape[1] - past_key_values.get_seq_length()
            if next_sequence_length is not None:
                input_ids = input_ids[:, -next_sequence_length:]
        device = self.model.embedding.weight.device
        of_prompt = inputs_embeds is not None and first
        return {
            "input_ids": None if of_prompt else input_ids.to(device),
            "inputs_embeds": inputs_embeds.to(device) if of_prompt else None,
            "attention_mask": attention_mask,
            "past_key_values": past_key_values,
            "use_cache": others.get("use_cache"),
            "output_hidden_states": others.get("output_hidden_states"),
            "logits_to_keep": others.get("logits_to_keep", 0),
        }

    def _validate_generated_length(self, generation_config, input_ids_length, has_default_max_length):
        super()._validate_generated_length(generation_config, input_ids_length, has_default_max_length)
        if generation_config.output_attentions:
            raise ValueError("not supported: output_attentions; leave it out")

    def _prepare_generated_length(self, **given):
        config = super()._prepare_generated_length(**given)
        # max_length counts input_ids, and leaves out inputs_embeds
        prompt = given["inputs_tensor"].shape[1] - given["input_ids_length"]
        self.model.check_length(prompt + config.max_length - 1)  # the last token is never read
        return config

    @classmethod
    def _supports_default_dynamic_cache(cls, *_):
        return False  # `forward` makes its own


@contextlib.contextmanager
def one_device():
    """transformers 5 builds a model on the meta device, but lets torch.linspace make tensors on the CPU. A
    module that combines them with others could not be built.
    """
    theirs, torch.linspace = torch.linspace, torch._VF.linspace
    try:
        yield
    finally:
        torch.linspace = theirs


@contextlib.contextmanager
def read_by(model):
    """Yields a list that gets what each block reads, [n, T, C], in the order in which they run."""
    states = []
    hooks = [
        block.register_forward_pre_hook(lambda _, given: states.append(given[0])) for block in model.blocks
    ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def hidden(model, given, attention_mask=None):
    """given: tokens [B, T] int64, or their embeddings [B, T, C] -> what the head reads, as `joined` takes
    it, by groups of rows that have the same padding before their text.
    """
    starts = text_starts(given, attention_mask)
    if not any(starts):
        return [(slice(None), 0, model.hidden(given))]
    groups = [(rows_of(starts, start), start) for start in sorted(set(starts))]
    return [(rows, start, model.hidden(given[rows, start:])) for rows, start in groups]


def joined(parts, given):
    """parts: (rows, first column, [n, T - first column, C]) -> [B, T, C], 0 at padding before a text"""
    if len(parts) == 1 and not parts[0][1]:
        return parts[0][2]
    h = parts[0][2].new_zeros(*given.shape[:2], parts[0][2].shape[-1])
    for rows, start, part in parts:
        h[rows, start:] = part
    return h


def rows_of(starts, start):
    """The rows whose text begins in column `start`."""
    return [row for row, its_start in enumerate(starts) if its_start == start]


def text_starts(tokens, attention_mask=None, for_cache=False):
    """The first column of each row that is no padding. Padding after the text needs no care without a
    cache: no token sees a later one. Raises ValueError for anything but padding before and after a text.
    """
    if attention_mask is None:
        return [0] * len(tokens)
    if attention_mask.shape != tokens.shape[:2]:
        raise ValueError(
            f"attention_mask must have the shape of the tokens, {list(tokens.shape[:2])}, not "
            f"{list(attention_mask.shape)}"
        )
    seen = attention_mask.cpu() != 0
    if seen.all():
        return [0] * len(tokens)
    starts = seen.int().argmax(1)
    ends = tokens.shape[1] - seen.flip(1).int().argmax(1)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if not seen[row, start:end].all() or not seen[row].any():
            what = "holes in its text" if seen[row].any() else "no token"
            raise ValueError(
                f"attention_mask has {what} in row {row}: it may only hide padding around a text"
            )
        if for_cache and end < tokens.shape[1]:
            raise ValueError(
                f"row {row} has padding after its text, where new tokens would follow: put padding before "
                'the texts, with tokenizer(texts, padding=True, padding_side="left")'
            )
    return starts.tolist()


@dataclass
class Group:
    """The cache of rows whose text begins in the same column."""

    rows: list[int]
    start: int
    cache: Cache


class GroupedCache:
    """What decoding keeps of a batch whose rows may have padding before their text."""

    is_compileable = False
    is_croppable = False

    def __init__(self, groups, seen=0):
        self.groups, self.seen = groups, seen

    @classmethod
    def of(cls, model, tokens, attention_mask=None):
        """Empty, for a batch that begins with these tokens [B, T]."""
        starts = text_starts(tokens, attention_mask, for_cache=True)
        most = model.config.block_size if model.config.length_limits() else sys.maxsize
        groups = [(rows_of(starts, start), start) for start in sorted(set(starts))]
        return cls([Group(rows, start, model.new_cache(len(rows), most)) for rows, start in groups])

    def hidden(self, model, tokens, attention_mask=None):
        """As the function `hidden`, for the tokens that follow; they join the cache."""
        batch, length = tokens.shape[:2]
        if attention_mask is not None and self.seen:
            wrong = attention_mask.shape != (batch, self.seen + length)
            if wrong or not attention_mask[:, self.seen :].all():
                raise ValueError(
                    f"after {self.seen} tokens in the cache, attention_mask must be [{batch}, "
                    f"{self.seen + length}] and 1 for all new tokens: padding comes before the texts only"
                )
        if batch != (held := sum(len(group.rows) for group in self.groups)):
            raise ValueError(f"the cache is that of {held} rows, not of {batch}")
        parts = []
        for group in self.groups:
            first = max(0, group.start - self.seen)
            model.check_length(self.seen + length - group.start)
            new = tokens[group.rows, first:]
            parts.append((group.rows, first, model.hidden(new, group.cache)))
        self.seen += length
        return parts

    def get_seq_length(self, *_):
        """Columns of the batch that the cache holds, padding included."""
        return self.seen

    def reorder_cache(self, beam_idx):
        """Row r becomes what row beam_idx[r] was, as beam search asks."""
        origins, groups = beam_idx.tolist(), []
        for group in self.groups:
            rows = [row for row, origin in enumerate(origins) if origin in group.rows]
            if rows:
                which = [group.rows.index(origins[row]) for row in rows]
                which = torch.tensor(which, device=beam_idx.device)
                groups.append(Group(rows, group.start, group.cache.of_rows(which)))
        self.groups = groups


def restore_buffers(model):
    """Gives buffers that no checkpoint holds the values that their modules compute."""
    for part in model.modules():
        if not isinstance(part, Part):
            continue
        names = [
            f"{prefix}.{name}".lstrip(".")
            for prefix, module in part.named_modules()
            for name in module._non_persistent_buffers_set
        ]
        if not names:
            continue
        new = type(part)(*part.built_from)
        for module in new.modules():
            if isinstance(module, Drawn) and module.draws():
                module.init_weights()
        own, fresh = dict(part.named_buffers()), dict(new.named_buffers())
        for name in names:
            own[name].copy_(fresh[name])
