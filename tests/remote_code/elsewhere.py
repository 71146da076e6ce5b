"""What a stranger does with exported folders. test_transformers.py runs this where our code is not found.

python -I elsewhere.py FOLDER: reads FOLDER/models/*, FOLDER/asked.pt; writes FOLDER/found.pt.
"""

import importlib.util
import sys
from pathlib import Path

import lm_eval
import torch
import transformers
from lm_eval.tasks import TaskManager
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

KEYS = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 8}


@torch.no_grad()
def measured(model, folder, asked):
    padded = {"input_ids": asked["padded"], "attention_mask": asked["mask"]}
    alone = {"input_ids": asked["prompt"], "attention_mask": torch.ones_like(asked["prompt"])}
    out = model(asked["tokens"], labels=asked["tokens"])
    half = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
    found = {
        "logits": out.logits,
        "loss": out.loss,
        "padded logits": model(**padded).logits,
        "half": half(asked["tokens"]).logits,
        "sizes": (model.config.vocab_size, model.config.max_position_embeddings),
        "ends": (model.config.eos_token_id, model.generation_config.eos_token_id),
        "unconditional": model.generate(max_new_tokens=3, do_sample=False),
    }
    for cached in (True, False):
        found["alone", cached] = model.generate(**alone, **KEYS, use_cache=cached)
        found["padded", cached] = model.generate(**padded, **KEYS, use_cache=cached)
        found["beams", cached] = model.generate(**padded, **KEYS, use_cache=cached, num_beams=3)
    found["half written"] = half.generate(**padded, **KEYS)
    package = type(model).__module__.rpartition(".")[0]
    found["operators"] = sys.modules[f"{package}.kernels_backend"].NAMESPACE
    return found


def main(root):
    assert importlib.util.find_spec("architecture") is None, "our code must not be there"
    transformers.utils.logging.disable_progress_bar()
    asked = torch.load(root / "asked.pt")
    # all are in memory together: each must have operators of its own
    models = {
        folder.name: AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
        for folder in sorted((root / "models").iterdir())
    }
    found = {name: measured(model, root / "models" / name, asked) for name, model in models.items()}
    for name, model in models.items():
        model.train()(asked["tokens"], labels=asked["tokens"]).loss.backward()
        found[name]["gradient"] = model.model.embedding.weight.grad.norm()
    first = next(iter(models))
    tokenizer = AutoTokenizer.from_pretrained(root / "models" / first, trust_remote_code=True)
    ids = [tokenizer(text)["input_ids"] for text in asked["texts"]]
    batch = tokenizer(asked["texts"], padding=True, return_tensors="pt")
    found["tokenizer"] = {"ids": ids, "end": tokenizer.eos_token_id, "batch": dict(batch)}
    models[first].save_pretrained(root / "saved")
    tokenizer.save_pretrained(root / "saved")
    again = AutoModelForCausalLM.from_pretrained(root / "saved", trust_remote_code=True)
    found["again"] = again(asked["tokens"]).logits.detach()
    config = AutoConfig.from_pretrained(root / "saved", trust_remote_code=True)
    drawn = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    found["drawn"] = drawn.model.embedding.weight.std().detach()
    scores = lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={root / 'models' / first},trust_remote_code=True,device=cpu",
        tasks=["our_last_word"],
        task_manager=TaskManager(include_path=str(root / "tasks"), include_defaults=False),
        bootstrap_iters=0,
    )
    found["perplexity"] = scores["results"]["our_last_word"]["perplexity,none"]
    torch.save(found, root / "found.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
