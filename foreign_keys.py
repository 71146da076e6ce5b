"""What other codebases call a key: the hint for a name that no script here knows.

A table maps a name there to (our keys, what differs). Keys without a word more mean the same. No keys: what
to do instead. A name that is written with its group, such as litgpt's eval.interval, stands with the group
where the last part alone means something else.
"""

from collections.abc import Iterable

Table = dict[str, tuple[str, str]]

STEPS = "in steps"
OVER_THE_RUN = "the number of steps, as max_iters = epochs x tokens of the data / tokens of a step"
OF_A_STEP = (
    "over all ranks together: a step has batch_size x gradient_accumulation_steps sequences, each of "
    "block_size tokens"
)
TOKENIZER = "the tokenizer is that of the prepared data: --tokenizer= of data/text/prepare.py"
FILE = "name a config file instead: python train.py config/gpt2.py config/size/small.py"
ONE_RATE = "AdamW has one rate for all that it trains; ladder_lr alone multiplies it"
RANKS = "torchrun starts the ranks, with --nproc_per_node of a machine and --nnodes"
TRAINS = "train.py trains, and evaluates every eval_interval steps"
ARGUMENT = "an argument of its own, as in python sample.py out/gpt2"
BEST = "the best checkpoint is always kept, and the other scripts read it (--which=best)"

OF_TRANSFORMERS: Table = {
    # TrainingArguments
    "output_dir": ("out_dir", ""),
    "overwrite_output_dir": ("", "a run is never overwritten: choose another --out_dir"),
    "do_train": ("", TRAINS),
    "do_eval": ("", TRAINS),
    "num_train_epochs": ("max_iters", OVER_THE_RUN),
    "max_steps": ("max_iters", ""),
    "per_device_train_batch_size": (
        "batch_size",
        "of one rank too, but gradient_accumulation_steps counts the micro-batches of all ranks together",
    ),
    "per_device_eval_batch_size": ("batch_size", "evaluations have that of training"),
    "lr_scheduler_type": ("lr_schedule", "cosine, linear, wsd or rsqrt, down to min_lr"),
    "warmup_steps": ("warmup_iters", ""),
    "warmup_ratio": ("warmup_iters", "in steps, not a share of them"),
    "optim": ("optimizer", "adamw or muon"),
    "adam_beta1": ("beta1", ""),
    "adam_beta2": ("beta2", ""),
    "adam_epsilon": ("", "it is 1e-8"),
    "max_grad_norm": ("grad_clip", ""),
    "label_smoothing_factor": ("label_smoothing", ""),
    "bf16": ("dtype", "--dtype=bfloat16"),
    "fp16": ("dtype", "--dtype=float16"),
    "gradient_checkpointing": ("activation_checkpointing", ""),
    "torch_compile": ("compile", "on unless you say --compile=False"),
    "logging_dir": ("out_dir", "log.jsonl is there, and with --track=wandb the curves"),
    "logging_steps": ("log_interval", ""),
    "logging_strategy": ("log_interval", STEPS),
    "report_to": ("track", "none, wandb or trackio"),
    "run_name": ("track_name", ""),
    "project": ("track_project", ""),
    "eval_steps": ("eval_interval", ""),
    "eval_strategy": ("eval_interval", STEPS),
    "evaluation_strategy": ("eval_interval", STEPS),
    "save_steps": ("checkpoint_interval", ""),
    "save_strategy": ("checkpoint_interval", STEPS),
    "save_total_limit": ("keep_checkpoints", "the best one is kept besides"),
    "load_best_model_at_end": ("", BEST),
    "metric_for_best_model": ("", "the best checkpoint has the lowest validation loss"),
    "resume_from_checkpoint": (
        "resume out_dir",
        "--resume=True goes on from the last checkpoint in out_dir",
    ),
    "full_determinism": ("deterministic", ""),
    "data_seed": ("seed", "one seed for weights, order of the data and dropout"),
    "use_cpu": ("device", "--device=cpu"),
    "no_cuda": ("device", "--device=cpu"),
    "ddp_timeout": ("distributed_timeout", ""),
    "fsdp": ("sharding", "none, full or hybrid"),
    "deepspeed": ("sharding", "none, full or hybrid"),
    "dataloader_num_workers": (
        "",
        "the loader reads prepared tokens; on a GPU a thread is one batch ahead",
    ),
    "disable_tqdm": ("", "the bar is there in a terminal only; a pipe gets lines"),
    "push_to_hub": ("", "python export.py RUN FOLDER writes a folder that transformers reads"),
    # its scripts
    "lr": ("learning_rate", ""),
    "eps": ("", "AdamW's is 1e-8; norm_eps is that of the norms"),
    "bs": ("batch_size", ""),
    "epochs": ("max_iters", OVER_THE_RUN),
    "num_epochs": ("max_iters", OVER_THE_RUN),
    "max_length": ("block_size", ""),
    "tokenizer": ("", TOKENIZER),
    "model_name_or_path": ("init_from", ""),
    "config_name": ("", FILE),
    "tokenizer_name": ("", TOKENIZER),
    "dataset_name": ("dataset", "a folder that a data/*/prepare.py has written"),
    "train_file": ("dataset", "a folder that data/text/prepare.py has written from such files"),
    # config.json of a model
    "hidden_size": ("n_embd", ""),
    "dim": ("n_embd", ""),
    "d_model": ("n_embd", ""),
    "num_hidden_layers": ("n_layer", ""),
    "num_attention_heads": ("n_head", ""),
    "num_key_value_heads": ("n_kv_head", ""),
    "intermediate_size": ("ffn_hidden", ""),
    "max_position_embeddings": ("block_size", ""),
    "n_positions": ("block_size", ""),
    "n_ctx": ("block_size", ""),
    "max_seq_length": ("block_size", ""),
    "rope_theta": ("rope_base", ""),
    "sliding_window": ("attention_window", "with --attention=sliding_window"),
    "hidden_act": ("mlp_activation", "of --ffn=mlp; SiLU with a gate is --ffn=swiglu"),
    "activation_function": ("mlp_activation", "of --ffn=mlp; SiLU with a gate is --ffn=swiglu"),
    "rms_norm_eps": ("norm_eps", "with --norm=rmsnorm"),
    "layer_norm_epsilon": ("norm_eps", ""),
    "tie_word_embeddings": ("tie_embeddings", ""),
    "attn_pdrop": ("dropout", "one share for all places"),
    "embd_pdrop": ("dropout", "one share for all places"),
    "resid_pdrop": ("dropout", "one share for all places"),
    "attention_dropout": ("dropout", "one share for all places"),
}
OF_NANOGPT: Table = {
    "eval_iters": ("eval_tokens", "in tokens, not in batches"),
    "eval_only": ("", "python evaluate.py RUN"),
    "always_save_checkpoint": ("checkpoint_interval", STEPS),
    "use_wandb": ("track", "--track=wandb"),
    "wandb_log": ("track", "--track=wandb"),
    "wandb_project": ("track_project", "with --track=wandb"),
    "wandb_run_name": ("track_name", "with --track=wandb"),
    "decay_lr": ("min_lr", "--min_lr of learning_rate keeps it constant after the warmup"),
    "lr_decay_iters": ("max_iters", "the schedule ends with the run"),
    "backend": ("", "NCCL between GPUs and Gloo between CPUs, as --device says"),
}
OF_NANOCHAT: Table = {
    "run": ("track_name", "with --track=wandb"),
    "device_type": ("device", ""),
    "depth": ("n_layer", "n_embd, n_head and the rates do not follow from it"),
    "aspect_ratio": ("n_embd", "the width itself"),
    "head_dim": ("n_head", "a head is n_embd / n_head wide"),
    "max_seq_len": ("block_size", ""),
    "window_pattern": ("attention", "a pattern of names, such as --attention=sliding_window,softmax"),
    "num_iterations": ("max_iters", ""),
    "target_param_data_ratio": (
        "max_iters",
        "the number of steps; --tokens_per_parameter of scale.py is such a ratio",
    ),
    "device_batch_size": ("batch_size", ""),
    "total_batch_size": ("gradient_accumulation_steps", OF_A_STEP),
    "matrix_lr": ("muon_learning_rate", "with --optimizer=muon"),
    "embedding_lr": ("learning_rate", ONE_RATE),
    "unembedding_lr": ("learning_rate", ONE_RATE),
    "scalar_lr": ("learning_rate", ONE_RATE),
    "warmdown_ratio": ("wsd_decay_iters", "in steps, with --lr_schedule=wsd"),
    "final_lr_frac": ("min_lr", "a rate, not a share of the peak"),
    "resume_from_step": (
        "resume",
        "from the last checkpoint; move later ones out of ckpt/ to go further back",
    ),
    "eval_every": ("eval_interval", ""),
    "save_every": ("checkpoint_interval", ""),
    "sample_every": ("", "python sample.py RUN, also while the run trains"),
    "core_metric_every": ("", "python evaluate.py RUN --task=zero_shot"),
    "model_tag": ("out_dir", ""),
}
OF_LITGPT: Table = {
    "global_batch_size": ("gradient_accumulation_steps", OF_A_STEP),
    "micro_batch_size": ("batch_size", ""),
    "train.epochs": ("max_iters", OVER_THE_RUN),
    "max_tokens": ("max_iters", "the number of steps, as max_iters = tokens / tokens of a step"),
    "lr_warmup_steps": ("warmup_iters", ""),
    "lr_warmup_fraction": ("warmup_iters", "in steps, not a share of an epoch"),
    "max_norm": ("grad_clip", ""),
    "save_interval": ("checkpoint_interval", ""),
    "eval.interval": ("eval_interval", ""),
    "eval.max_iters": ("eval_tokens", "in tokens, not in batches"),
    "logger_name": ("track", "none, wandb or trackio"),
    "log.project": ("track_project", ""),
    "log.run": ("track_name", ""),
    "precision": ("dtype", "float32, bfloat16 or float16; the weights stay float32"),
    "initial_checkpoint_dir": ("init_from", ""),
    "tokenizer_dir": ("", TOKENIZER),
    "model_name": ("", FILE),
    "data": ("dataset", "a folder that a data/*/prepare.py has written"),
    "devices": ("", RANKS),
    "num_nodes": ("", RANKS),
    "n_query_groups": ("n_kv_head", ""),
    "norm_class_name": ("norm", "layernorm or rmsnorm"),
}
OF_TORCHTITAN: Table = {
    "dump_folder": ("out_dir", ""),
    "flavor": ("", FILE),
    "training.steps": ("max_iters", ""),
    "seq_len": ("block_size", ""),
    "local_batch_size": ("batch_size", ""),
    "mixed_precision_param": ("dtype", ""),
    "decay_ratio": ("wsd_decay_iters", "in steps, with --lr_schedule=wsd"),
    "decay_type": ("lr_schedule", "cosine, linear, wsd or rsqrt, down to min_lr"),
    "min_lr_factor": ("min_lr", "a rate, not a share of the peak"),
    "log_freq": ("log_interval", ""),
    "enable_wandb": ("track", "--track=wandb"),
    "enable_profiling": ("profile", "--profile=5 traces five steps"),
    "profile_freq": ("profile", "how many steps are traced, once"),
    "enable_memory_snapshot": ("profile", "on a GPU, it writes one too"),
    "checkpoint.interval": ("checkpoint_interval", ""),
    "keep_latest_k": ("keep_checkpoints", "the best one is kept besides"),
    "async_mode": ("checkpoint_format", "--checkpoint_format=sharded writes in the background"),
    "initial_load_path": ("init_from", ""),
    "activation_checkpoint.mode": ("activation_checkpointing", "of every block, or of none"),
    "compile.enable": ("compile", ""),
    "data_parallel_shard_degree": ("sharding", "none, full or hybrid, with sharding_ranks"),
    "data_parallel_replicate_degree": ("sharding", "--sharding=hybrid, with sharding_ranks"),
}
TRAINING: Table = OF_TRANSFORMERS | OF_NANOGPT | OF_NANOCHAT | OF_LITGPT | OF_TORCHTITAN

FINETUNING: Table = {
    "num_train_epochs": ("epochs", ""),
    "num_epochs": ("epochs", ""),
    "per_device_train_batch_size": (
        "micro_batch_size",
        "in memory at once; a step has batch_size examples",
    ),
    "lr": ("learning_rates", "one or several with commas between them: each is tried"),
    "max_seq_length": ("max_length", ""),
    "warmup_ratio": ("warmup_share", ""),
    "warmup_steps": ("warmup_share", "a share of all steps"),
    "model_name_or_path": ("models", ARGUMENT),
    "checkpoint_dir": ("models", ARGUMENT),
    "task_name": ("tasks", ""),
}

SAMPLING: Table = {
    "model_name_or_path": ("out_dir", ARGUMENT),
    "checkpoint_dir": ("out_dir", ARGUMENT),
    "prompt": ("start", ""),
    "num_beams": ("beams", ""),
    "num_return_sequences": ("num_samples", ""),
    "no_repeat_ngram_size": ("no_repeat_ngram", ""),
    "do_sample": ("temperature", "--temperature=0 takes the likeliest token"),
    "max_length": ("max_new_tokens", "without the prompt's"),
    "repetition_penalty": ("no_repeat_ngram", "forbids what would repeat so many tokens"),
}

EVALUATING: Table = {
    "num_fewshot": ("tasks", "of --task=zero_shot; a task's own file says how many examples precede it"),
    "output_path": ("json", ""),
    "output_dir": ("json", "a file"),
    "dataset_name": ("texts", ""),
    "max_eval_samples": ("limit", "of --task=zero_shot; --max_tokens is that of texts"),
    "pretrained": ("models", ARGUMENT),
    "checkpoint_dir": ("models", ARGUMENT),
}

EXPORTING: Table = {
    "output_dir": ("folders", "the second argument: python export.py RUN FOLDER"),
    "checkpoint_dir": ("folders", "the first argument: python export.py RUN FOLDER"),
    "model_name_or_path": ("folders", "the first argument: python export.py RUN FOLDER"),
    "push_to_hub": ("folders", "upload what it writes with hf upload"),
}

PREPARING: Table = {
    "text_column": ("field", ""),
    "max_samples": ("max_docs", ""),
    "dataset_config_name": ("hub_config", ""),
    "name": ("hub_config", ""),
    "output_dir": ("out", ""),
    "dataset_name": ("input", "OWNER/NAME of the hub, a folder or files"),
    "train_file": ("input", ""),
    "tokenizer_name": ("tokenizer", "gpt2, bpe:4096, bytes, or the path of a tokenizer.json"),
    "num_proc": ("workers", ""),
    "test_size": ("val_fraction", ""),
}
TABLES = (FINETUNING, SAMPLING, EVALUATING, EXPORTING, PREPARING, TRAINING)


def hint(name: str, own: Iterable[str]) -> str | None:
    """What an unknown key is called here and what differs, as words; None where no table has it.

    own: the keys of the script at hand. What has no key here has a hint where a script trains.
    """
    own, last = {*own}, name.rpartition(".")[2]
    tables = (TRAINING,) if "max_iters" in own else TABLES
    tables = [table for table in tables if table is not PREPARING or "workers" in own]
    found = [table.get(name, table.get(last)) for table in tables]
    for keys, differs in filter(None, [*found, (last, "") if last != name else None]):
        if own.issuperset(keys.split() or ["max_iters"]):
            here = f"here {' and '.join(keys.split())}" if keys else "no key here"
            return here + (f" ({differs})" if differs else "")
    return None
