"""Sequences, graphs, and models that are not called as a whole."""

import torch
from outside_training import Loop, Trainer, Training
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


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
