"""Mean and variance of a tensor that is met slab by slab, joined in float64 by Chan's formula."""

import torch

from tensorferry.engines.torch.stream.slabs import Slab, in_layout


class Moments:
    """Mean and squared deviations of every channel of every sample, slab after slab."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, torch.Tensor, torch.Tensor]] = {}  # by sample: numbers in a channel, mean, deviations

    def add(self, slab: Slab, tensor: torch.Tensor) -> None:
        """Take a slab into account."""
        for i in range(slab.last - slab.first):
            sample = in_layout(tensor[i : i + 1])
            mean, variance = (t.double() for t in torch.ops.aten.batch_norm_update_stats(sample, None, None, 0.0))
            num = sample[0, 0].numel()
            deviations = variance * num
            if before := self._of.get(slab.first + i):
                earlier, earlier_mean, earlier_deviations = before
                total, step = earlier + num, mean - earlier_mean
                mean = earlier_mean + step * (num / total)
                deviations = deviations + earlier_deviations + step * step * (earlier * num / total)
                num = total
            self._of[slab.first + i] = (num, mean, deviations)

    def stacked(self) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Numbers in a channel of a sample; mean and variance, samples by channels."""
        num = self._of[0][0]
        samples = [self._of[i] for i in range(len(self._of))]
        return num, torch.stack([mean for _, mean, _ in samples]), torch.stack([d for *_, d in samples]) / num
