"""The configuration of CoFrGeNetForCausalLM. It imports no other file of ours."""

from transformers import PretrainedConfig


class CoFrGeNetConfig(PretrainedConfig):
    """`model` holds the keys of ModelConfig in models/architecture.py. Sizes follow from it."""

    model_type = "cofrgenet"

    def __init__(self, model=None, format=None, step=None, **others):
        self.model, self.format, self.step = dict(model or {}), format, step
        # sizes under the names by which other libraries look for them
        self.vocab_size = self.model.get("vocab_size")
        self.hidden_size = self.model.get("n_embd")
        self.num_hidden_layers = self.model.get("n_layer")
        self.num_attention_heads = self.model.get("n_head")
        self.max_position_embeddings = self.model.get("block_size")
        others["tie_word_embeddings"] = self.model.get("tie_embeddings", True)
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
        for name in (*sizes, "max_position_embeddings"):
            others.pop(name, None)
        super().__init__(**others)
