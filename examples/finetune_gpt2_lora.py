"""Transformers and peft: fine-tune a tiny random GPT-2 with LoRA; token weights and accumulation stay Trainer's.

python examples/finetune_gpt2_lora.py        (pip install '.[transformers]' peft)
"""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import tacit.transformers

WORDS, LENGTH = 50, 16


class PenaltyTrainer(tacit.transformers.PenaltyMixin, Trainer):
    """One mixin is the whole change."""


def counting_sequences(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences a, a + d, a + 2d, … modulo the number of words, of unequal lengths: the rest is not predicted."""
    rows = []
    for _ in range(count):
        start, step, length = (int(torch.randint(low, high, ())) for low, high in ((0, WORDS), (1, 5), (4, LENGTH + 1)))
        tokens = (start + step * torch.arange(LENGTH)) % WORDS
        labels = torch.where(torch.arange(LENGTH) < length, tokens, -100)
        rows.append({"input_ids": tokens, "labels": labels})
    return rows


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0)
    config.eos_token_id = 0
    adapters = LoraConfig(r=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, modules_to_save=["lm_head"])
    model = get_peft_model(GPT2LMHeadModel(config), adapters)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=30, per_device_train_batch_size=8, gradient_accumulation_steps=2,
            learning_rate=1e-2, logging_steps=10, report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        rows = counting_sequences(512)
        trainer = PenaltyTrainer(model=model, args=settings, train_dataset=rows, penalty={"strength": 2**-6})
        trainer.train()
    for row in trainer.state.log_history[:-1]:
        print(f"step {row['step']:>3}: loss {row['loss']:.3f}, penalty {row['tacit/penalty']:.5f}")


if __name__ == "__main__":
    main()
