"""Models and trainers of other packages, each with the batch and the loop that its own documentation shows.

All are built from configurations with random weights, so nothing is downloaded. Plain training takes 60 to 400 MiB.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Training(Protocol):
    """A model and a loop that trains it."""

    model: nn.Module

    def train(self, num_steps: int) -> list[float]:
        """Train for so many steps; the losses."""


@dataclass(slots=True)
class Loop:
    """The loop that most people write."""

    model: nn.Module
    compute_loss: Callable[[], Tensor]
    make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def train(self, num_steps: int) -> list[float]:
        """Train for so many steps; the losses."""
        optimizer = self.make_optimizer((p for p in self.model.parameters() if p.requires_grad), lr=1e-3)
        losses = []
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = self.compute_loss()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


@dataclass(slots=True)
class Trainer:
    """A loop that is a package's own."""

    model: nn.Module
    run: Callable[[int], list[float]]

    def train(self, num_steps: int) -> list[float]:
        """Train for so many steps; the losses."""
        return self.run(num_steps)


# Hugging Face


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


def vit() -> Training:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=6, intermediate_size=768, image_size=128)
    model = ViTForImageClassification(config)
    images, labels = torch.randn(16, 3, 128, 128), torch.randint(0, 2, (16,))
    return Loop(model, lambda: model(pixel_values=images, labels=labels).loss)


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


def convnext() -> Training:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    model = ConvNextForImageClassification(ConvNextConfig(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2]))
    images, labels = torch.randn(8, 3, 160, 160), torch.randint(0, 2, (8,))
    return Loop(model, lambda: model(pixel_values=images, labels=labels).loss)


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


# images and volumes


def diffusers_unet() -> Training:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(64, 128, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    images, times, noise = torch.randn(8, 3, 32, 32), torch.randint(0, 1000, (8,)), torch.randn(8, 3, 32, 32)
    return Loop(model, lambda: nn.functional.mse_loss(model(images, times).sample, noise))


def _monai(make_model: Callable[[], nn.Module], channels: int = 1, edge: int = 64, num_classes: int = 2) -> Training:
    from monai.losses import DiceCELoss

    model, dice = make_model(), DiceCELoss(to_onehot_y=True, softmax=True)
    volumes, labels = torch.randn(1, channels, edge, edge, edge), torch.randint(0, num_classes, (1, 1, edge, edge, edge))
    return Loop(model, lambda: dice(model(volumes), labels))


def monai_unet() -> Training:
    from monai.networks.nets import UNet

    return _monai(lambda: UNet(3, 1, 2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2))


def monai_dynunet() -> Training:
    from monai.networks.nets import DynUNet

    kernels, strides = [3, 3, 3, 3], [1, 2, 2, 2]
    return _monai(lambda: DynUNet(3, 1, 2, kernels, strides, strides[1:], filters=[16, 32, 64, 128]))


def monai_segresnet() -> Training:
    from monai.networks.nets import SegResNet

    return _monai(lambda: SegResNet(3, init_filters=8, in_channels=1, out_channels=2))


def monai_swinunetr() -> Training:
    from monai.networks.nets import SwinUNETR

    return _monai(lambda: SwinUNETR(1, 2, feature_size=12), edge=64)


def monai_densenet() -> Training:
    """Every layer reads all before it."""
    from monai.networks.nets import DenseNet121

    model = DenseNet121(spatial_dims=3, in_channels=1, out_channels=4)
    volumes, labels = torch.randn(2, 1, 64, 64, 64), torch.randint(0, 4, (2,))
    return Loop(model, lambda: nn.functional.cross_entropy(model(volumes), labels), torch.optim.SGD)


# sequences, graphs, and models that are not called as a whole


def packed_lstm() -> Training:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(2000, 256)
            self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(512, 20)

        def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=words.shape[1])
            scores: Tensor = self.head(states)
            return scores

    model = Tagger()
    words, tags, lengths = torch.randint(0, 2000, (32, 200)), torch.randint(0, 20, (32, 200)), torch.randint(50, 201, (32,))
    return Loop(model, lambda: nn.functional.cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten()))


def seq2seq() -> Training:
    """Two recurrent networks and attention, step by step; there is no forward of the whole."""

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(3000, 192)
            self.encoder = nn.GRU(192, 192, batch_first=True)
            self.decoder = nn.GRUCell(384, 192)
            self.head = nn.Linear(192, 3000)

    model = Translator()
    source, target = torch.randint(0, 3000, (32, 60)), torch.randint(0, 3000, (32, 25))

    def compute_loss() -> Tensor:
        memory, last = model.encoder(model.embedding(source))
        state, losses = last[0], []
        for place in range(target.shape[1] - 1):
            weights = torch.softmax((memory @ state[:, :, None]).squeeze(2), 1)
            context = (weights[:, :, None] * memory).sum(1)
            state = model.decoder(torch.cat([model.embedding(target[:, place]), context], 1), state)
            losses.append(nn.functional.cross_entropy(model.head(state), target[:, place + 1]))
        return torch.stack(losses).mean()

    return Loop(model, compute_loss)


def gan() -> Training:
    """Two optimizers, two backward passes a step, and only the submodules are called."""

    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(
                nn.ConvTranspose2d(64, 128, 8), nn.BatchNorm2d(128), nn.ReLU(),
                nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
                nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
                nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(),
            )  # fmt: skip
            self.discriminator = nn.Sequential(
                nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2),
                nn.Conv2d(32, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.LeakyReLU(0.2),
                nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2),
                nn.Flatten(), nn.Linear(128 * 64, 1),
            )  # fmt: skip

    model, real = Gan(), torch.randn(32, 3, 64, 64)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    compare = nn.functional.binary_cross_entropy_with_logits

    def run(num_steps: int) -> list[float]:
        generator = torch.optim.Adam(model.generator.parameters(), lr=2e-4)
        discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=2e-4)
        losses = []
        for _ in range(num_steps):
            discriminator.zero_grad()
            made = model.generator(torch.randn(32, 64, 1, 1))
            loss = compare(model.discriminator(real), ones) + compare(model.discriminator(made.detach()), zeros)
            loss.backward()
            discriminator.step()
            generator.zero_grad()
            fooled = compare(model.discriminator(made), ones)
            fooled.backward()
            generator.step()
            losses += [loss.item(), fooled.item()]
        return losses

    return Trainer(model, run)


def pyg_gcn() -> Training:
    from torch_geometric.nn import GCNConv

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = GCNConv(64, 128), GCNConv(128, 128), GCNConv(128, 16)

        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            nodes = self.first(nodes, edges).relu()
            nodes = nn.functional.dropout(nodes, training=self.training)
            nodes = self.second(nodes, edges).relu()
            scores: Tensor = self.third(nodes, edges)
            return scores

    model = Network()
    nodes, edges, classes = torch.randn(20_000, 64), torch.randint(0, 20_000, (2, 60_000)), torch.randint(0, 16, (20_000,))
    return Loop(model, lambda: nn.functional.cross_entropy(model(nodes, edges), classes))


def pyg_gat() -> Training:
    """Attention over edges."""
    from torch_geometric.nn import GATConv

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GATConv(64, 16, heads=4), GATConv(64, 16)

        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            scores: Tensor = self.second(nn.functional.elu(self.first(nodes, edges)), edges)
            return scores

    model = Network()
    nodes, edges, classes = torch.randn(20_000, 64), torch.randint(0, 20_000, (2, 60_000)), torch.randint(0, 16, (20_000,))
    return Loop(model, lambda: nn.functional.cross_entropy(model(nodes, edges), classes))


def keras_efficientnet() -> Training:
    """Keras's own loop on torch; a functional model with many branches."""
    import keras

    return _fit_images(lambda: keras.applications.EfficientNetB0(weights=None, input_shape=(96, 96, 3), classes=10), 8, 96)


def keras_resnet50() -> Training:
    """Functional, and large activations."""
    import keras

    return _fit_images(lambda: keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10), 8, 96)


def keras_unet() -> Training:
    """Functional, and what one half makes is read again at the end of the other."""
    import keras
    from keras import layers

    def convolve(x: Any, num_filters: int) -> Any:
        x = layers.Conv2D(num_filters, 3, padding="same", activation="relu")(x)
        return layers.Conv2D(num_filters, 3, padding="same", activation="relu")(x)

    def build() -> Any:
        inputs = x = keras.Input((128, 128, 3))
        skipped = []
        for num_filters in (16, 32, 64):
            x = convolve(x, num_filters)
            skipped.append(x)
            x = layers.MaxPooling2D()(x)
        x = convolve(x, 128)
        for num_filters in (64, 32, 16):
            x = layers.Conv2DTranspose(num_filters, 2, strides=2)(x)
            x = convolve(layers.Concatenate()([x, skipped.pop()]), num_filters)
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))

    return _fit_images(build, 8, 128)


def _fit_images(build: Callable[[], Any], batch: int, size: int) -> Training:
    import keras

    keras.utils.set_random_seed(7)
    model = build()
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="sparse_categorical_crossentropy")
    images, classes = torch.randn(batch, size, size, 3).numpy(), torch.randint(0, 10, (batch,)).numpy()

    def run(num_steps: int) -> list[float]:
        history = model.fit(images, classes, batch_size=batch, epochs=num_steps, verbose=0)
        return [float(loss) for loss in history.history["loss"]]

    return Trainer(model, run)


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What must be equal bit for bit after a training: weights, their gradients, and buffers."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
        if parameter.grad is not None:
            yield f"{name}, its gradient", parameter.grad
    yield from model.named_buffers()
