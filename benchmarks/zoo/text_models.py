"""Models of transformers and peft from small random configurations, as the library makes them (sdpa attention).

DoRA is left out: it detaches the norm of its weights, so its gradient is not the gradient of any loss, and methods that
differentiate ‖g‖² and methods that differentiate g along g rightly differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from entry import CLASSES, Case, Entry, images, import_torchvision, seeded, whole_numbers
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, LENGTH, BATCH = 50, 6, 3
# One width for all; names of configuration keys differ between families.
_SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def import_transformers() -> Any:
    """transformers imports torchvision where it is installed."""
    import_torchvision()
    import transformers

    return transformers


def _language_model(make: Callable[[Any], nn.Module]) -> Callable[[], Case]:
    """Cross-entropy of the next token. The library's own loss casts the scores to float32, which would hide errors."""

    def case() -> Case:
        transformers = import_transformers()

        model = seeded(lambda: make(transformers))
        tokens = whole_numbers(VOCABULARY - 3, BATCH, LENGTH, seed=3) + 3

        def call() -> Tensor:
            scores = model(input_ids=tokens, labels=tokens).logits[:, -LENGTH:]
            return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

        return Case(model, call)

    return case


def _decoder(family: str, **settings: Any) -> Entry:
    def make(transformers: Any) -> nn.Module:
        return getattr(transformers, f"{family}ForCausalLM")(_config(transformers, family, settings))

    return Entry(family, "transformers", _language_model(make))


def _encoder(family: str, **settings: Any) -> Entry:
    def make(transformers: Any) -> nn.Module:
        return getattr(transformers, f"{family}ForMaskedLM")(_config(transformers, family, settings))

    return Entry(family, "transformers", _language_model(make))


def _sequence_to_sequence(family: str, **settings: Any) -> Entry:
    def make(transformers: Any) -> nn.Module:
        return getattr(transformers, f"{family}ForConditionalGeneration")(_config(transformers, family, settings))

    return Entry(family, "transformers", _language_model(make))


def _image_model(family: str, *, size: int = 32, **settings: Any) -> Entry:
    def make() -> nn.Module:
        transformers = import_transformers()

        config = getattr(transformers, f"{family}Config")(num_labels=CLASSES, **settings)
        return getattr(transformers, f"{family}ForImageClassification")(config)

    return Entry(family, "transformers", lambda: images(make, size=size))


def _config(transformers: Any, family: str, settings: dict[str, Any]) -> Any:
    return getattr(transformers, f"{family}Config")(**(_SMALL | settings))


def _gpt2(transformers: Any, width: int = 32) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=width, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def _llama_with_lora(width: int) -> Callable[[], Case]:
    """The base is frozen, and its embeddings' output requires a gradient, as trainers do for checkpointing."""

    def make(transformers: Any) -> nn.Module:
        import peft

        settings = {"hidden_size": width, "intermediate_size": width, "num_attention_heads": 4}
        model = transformers.LlamaForCausalLM(_config(transformers, "Llama", settings))
        lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(model, lora)
        adapted.enable_input_require_grads()
        return adapted

    return _language_model(make)


def _peft(kind: str) -> Callable[[], Case]:
    def make(transformers: Any) -> nn.Module:
        import peft

        config = {
            "IA3": lambda: peft.IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj", "v_proj", "down_proj"],
                                          feedforward_modules=["down_proj"]),
            "prompt tuning": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        }[kind]()  # fmt: skip
        return peft.get_peft_model(transformers.LlamaForCausalLM(_config(transformers, "Llama", {})), config)

    return _language_model(make)


def _checkpointed_llama(transformers: Any) -> nn.Module:
    model = transformers.LlamaForCausalLM(_config(transformers, "Llama", {"use_cache": False}))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


ENTRIES = [
    Entry("GPT-2", "transformers", _language_model(_gpt2)),
    Entry("GPT-2, width 512", "transformers", _language_model(lambda transformers: _gpt2(transformers, 512))),
    _encoder("Bert"),
    _decoder("Llama"),
    Entry("Llama, width 512", "transformers", _language_model(lambda t: t.LlamaForCausalLM(
        _config(t, "Llama", {"hidden_size": 512, "intermediate_size": 512})))),
    Entry("Llama with checkpointing", "transformers", _language_model(_checkpointed_llama)),
    Entry("Llama + LoRA, width 512, input gradients", "peft", _llama_with_lora(512)),
    Entry("Llama + LoRA", "peft", _llama_with_lora(32)),
    Entry("Llama + IA3", "peft", _peft("IA3")),
    Entry("Llama + prompt tuning", "peft", _peft("prompt tuning")),
    _encoder("Roberta"),
    _encoder("Electra", embedding_size=16),
    _encoder("Albert", embedding_size=16),
    _encoder("DistilBert", dim=32, n_layers=2, n_heads=2, hidden_dim=48),
    _encoder("DebertaV2", relative_attention=True, position_buckets=4, pos_att_type=["p2c", "c2p"]),
    _decoder("Mistral", num_key_value_heads=1),
    _decoder("Qwen2", num_key_value_heads=1),
    _decoder("Gemma", num_key_value_heads=1, head_dim=16),
    _decoder("Phi"),
    _decoder("GPTNeoX"),
    _decoder("OPT", ffn_dim=48, word_embed_proj_dim=32),
    _decoder("Bloom", n_layer=2, n_head=2),
    _decoder("Falcon"),
    _decoder("Mixtral", num_key_value_heads=1, num_local_experts=3, experts_implementation="eager"),
    _decoder("Mamba", state_size=4),
    _sequence_to_sequence("T5", d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=0),
    _sequence_to_sequence("Bart", d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                          decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48),
    _image_model("ViT", image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                 intermediate_size=48),
    _image_model("Swin", image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
    _image_model("ConvNextV2", num_stages=2, hidden_sizes=[16, 32], depths=[1, 1]),
    _image_model("Segformer", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
                 patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
]  # fmt: skip
