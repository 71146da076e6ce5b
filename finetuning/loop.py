"""Fine-tuning one classifier on one task with one seed, and scoring it."""

import time

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from finetuning.classifier import Classifier
from finetuning.inputs import Inputs, by_length, padded, steps_in_epoch, training_order
from finetuning.metrics import METRICS
from finetuning.tasks import Task
from training.hardware import autocast
from training.optimizer import adamw
from training.schedule import learning_rate as rate_at


@torch.no_grad()
def predict(
    classifier: Classifier, inputs: Inputs, padding: int, batch_size: int, device: torch.device, dtype: str
) -> tuple[np.ndarray, float]:
    """(predicted classes int64 [N], mean cross-entropy in nats), in evaluation mode."""
    training = classifier.training
    classifier.eval()
    predicted, loss = np.zeros(len(inputs), dtype=np.int64), 0.0
    longest = classifier.model.config.block_size
    with autocast(device, dtype):
        for indices in by_length(inputs, batch_size):
            tokens, lengths, labels = (x.to(device) for x in padded(inputs, indices, padding, longest))
            logits = classifier(tokens, lengths)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            predicted[indices] = logits.argmax(-1).cpu().numpy()
    classifier.train(training)
    return predicted, loss / len(inputs)


def evaluate(classifier, task: Task, validation: dict[str, Inputs], *keys) -> dict[str, dict[str, float]]:
    """The loss, accuracy and task's metrics on each validation set. keys: arguments of `predict`."""
    scores = {}
    for name, inputs in validation.items():
        predicted, loss = predict(classifier, inputs, *keys)
        scores[name] = {
            "loss": loss,
            **{metric: METRICS[metric](predicted, inputs.labels) for metric in ("accuracy", *task.metrics)},
        }
    return scores


def finetune(
    classifier: Classifier, task: Task, train: Inputs, validation: dict[str, Inputs], padding: int,
    learning_rate: float, seed: int, config, device: torch.device, dtype: str, shown: str,
) -> dict:  # fmt: skip
    """Trains on `train`, scores on `validation` after each epoch, and returns the results for JSON.

    config: that of finetune.py. The optimizer is AdamW with linear warmup and linear or cosine decay to 0.
    The same seed gives the same batches, and on a CPU with the same number of threads the same weights.
    `best` is the evaluation with the highest accuracy on the first validation set, the earliest of equals.
    A step whose gradient is not finite is skipped and counted.
    """
    epochs = config.epochs or task.epochs
    total = epochs * steps_in_epoch(train, config.batch_size)
    warmup = int(config.warmup_share * total)
    optimizer = adamw(classifier, learning_rate, config.weight_decay, (config.beta1, config.beta2))
    micro = config.micro_batch_size or config.batch_size
    longest = classifier.model.config.block_size
    torch.manual_seed(seed)  # for dropout
    classifier.train()
    evaluations, step, start = [], 0, time.perf_counter()
    skipped = torch.zeros((), device=device)
    with tqdm(total=total, desc=shown, unit=" steps", leave=False) as bar:
        for epoch in range(epochs):
            loss_of_epoch = torch.zeros((), device=device)
            for batch in training_order(train, config.batch_size, seed, epoch):
                rate = rate_at(step, config.lr_schedule, total, warmup, 0, learning_rate, 0.0)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                for first in range(0, len(batch), micro):
                    indices = batch[first : first + micro]
                    inputs = [x.to(device) for x in padded(train, indices, padding, longest)]
                    with autocast(device, dtype):
                        loss = classifier(*inputs)
                    (loss / len(batch)).backward()
                    loss_of_epoch += loss.detach()
                norm = torch.nn.utils.clip_grad_norm_(
                    classifier.parameters(), config.grad_clip or float("inf"), foreach=True
                )
                broken = (~torch.isfinite(norm)).float()
                optimizer.step(skip=broken)
                skipped += broken
                optimizer.zero_grad(set_to_none=True)
                step += 1
                bar.update()
            scores = evaluate(classifier, task, validation, padding, micro, device, dtype)
            mean = loss_of_epoch.item() / len(train)
            evaluations.append({"epoch": epoch + 1, "step": step, "training_loss": mean, **scores})
            first_set = next(iter(validation))
            bar.set_postfix(accuracy=f"{scores[first_set]['accuracy']:.4f}")
    return {
        "best": max(evaluations, key=lambda e: e[first_set]["accuracy"]),  # the earliest of equals
        "final": evaluations[-1],
        "evaluations": evaluations,
        "skipped_steps": int(skipped.item()),
        "seconds": round(time.perf_counter() - start, 1),
    }
