"""Language and sound: models and trainers of Hugging Face and Lightning, whole or sharded."""

from pathlib import Path
from typing import Any

import torch
from outside_training import Loop, Trainer, Training
from torch import Tensor, nn


def bert() -> Training:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=4000, hidden_size=192, num_hidden_layers=4, num_attention_heads=6, intermediate_size=768)
    model = BertForSequenceClassification(config)
    words, labels = torch.randint(0, 4000, (12, 128)), torch.randint(0, 2, (12,))
    return Loop(model, lambda: model(input_ids=words, labels=labels).loss)


def gpt2() -> Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=4000, n_embd=192, n_layer=4, n_head=6, n_positions=256))
    words = torch.randint(0, 4000, (6, 256))
    return Loop(model, lambda: model(input_ids=words, labels=words, use_cache=False).loss)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def llama() -> Training:
    model, words = _llama(), torch.randint(0, 4000, (8, 128))
    return Loop(model, lambda: model(input_ids=words, labels=words, use_cache=False).loss)


def llama_lora() -> Training:
    from peft import LoraConfig, get_peft_model

    model: Any = get_peft_model(_llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    words = torch.randint(0, 4000, (8, 128))
    return Loop(model, lambda: model(input_ids=words, labels=words, use_cache=False).loss)


def mixtral() -> Training:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=2000,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = MixtralForCausalLM(config)
    words = torch.randint(0, 2000, (8, 128))
    return Loop(model, lambda: model(input_ids=words, labels=words, use_cache=False).loss)


def t5() -> Training:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=4000, d_model=256, d_kv=32, d_ff=1024, num_layers=4, num_heads=8, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    words, labels = torch.randint(0, 4000, (8, 128)), torch.randint(0, 4000, (8, 64))
    return Loop(model, lambda: model(input_ids=words, labels=labels, use_cache=False).loss, torch.optim.SGD)


def whisper() -> Training:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=2000,
        d_model=192,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=768,
        decoder_ffn_dim=768,
        max_source_positions=300,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config)
    sound, labels = torch.randn(8, 80, 600), torch.randint(0, 2000, (8, 64))
    return Loop(model, lambda: model(input_features=sound, labels=labels, use_cache=False).loss)


def clip() -> Training:
    """Two towers whose outputs are compared, each with each."""
    from transformers import CLIPConfig, CLIPModel

    shape = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 3, "num_attention_heads": 6}
    model = CLIPModel(
        CLIPConfig(
            text_config={**shape, "vocab_size": 2000, "max_position_embeddings": 64, "eos_token_id": 2},
            vision_config={**shape, "image_size": 112, "patch_size": 8},
            projection_dim=128,
        )
    )
    words, images = torch.randint(3, 2000, (16, 64)), torch.randn(16, 3, 112, 112)
    words[:, -1] = 2
    return Loop(model, lambda: model(input_ids=words, pixel_values=images, return_loss=True).loss)


def wav2vec2() -> Training:
    """Convolutions over raw sound, with group and layer norms, before the attention, and a loss of its own kind."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=192,
        num_hidden_layers=3,
        num_attention_heads=6,
        intermediate_size=768,
        conv_dim=(96, 96, 96, 96),
        conv_stride=(5, 4, 4, 2),
        conv_kernel=(10, 8, 4, 2),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        mask_feature_prob=0.0,
        ctc_loss_reduction="mean",
    )
    model = Wav2Vec2ForCTC(config)
    sound, labels = torch.randn(4, 32_000), torch.randint(1, 32, (4, 24))
    return Loop(model, lambda: model(input_values=sound, labels=labels).loss)


def hf_trainer() -> Training:
    """Hugging Face's own loop, with gradients clipped and accumulated over two batches."""
    import tempfile

    from transformers import Trainer as HfTrainer
    from transformers import TrainingArguments

    model: Any = bert().model
    rows = [{"input_ids": torch.randint(0, 4000, (128,)), "labels": torch.tensor(i % 2)} for i in range(64)]

    def run(num_steps: int) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                max_steps=num_steps,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                seed=0,
            )
            trainer = HfTrainer(model=model, args=arguments, train_dataset=rows)
            trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return Trainer(model, run)


def lightning() -> Training:
    """Lightning's own loop."""
    from lightning import LightningModule
    from lightning import Trainer as LightningTrainer

    class Network(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = bert().model
            self.losses: list[float] = []

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss: Tensor = self.network(input_ids=batch[0], labels=batch[1]).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    model = Network()
    data = torch.utils.data.TensorDataset(torch.randint(0, 4000, (64, 128)), torch.randint(0, 2, (64,)))

    def run(num_steps: int) -> list[float]:
        trainer = LightningTrainer(
            max_steps=num_steps,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16))
        return model.losses

    return Trainer(model, run)


def fsdp2() -> Training:
    """Parameters that are sharded, gathered for their layer and let go again; in a group of this process alone."""
    import tempfile

    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        meeting = Path(tempfile.mkdtemp(prefix="ferry-outside-"), "meeting")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    training = bert()
    for layer in training.model.bert.encoder.layer:
        fully_shard(layer)
    fully_shard(training.model)
    return training
