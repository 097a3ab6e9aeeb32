"""Trains a small CNN with BatchNorm on scikit-learn's digits, compiled, beside eager PyTorch.

Both copies start from the same weights and see the same batches. Prints the mean loss of each epoch
and the accuracy on held-out digits. Exits with 1 if the first ten losses differ by more than 1e-5
of their size, if the loss does not fall, if the accuracies are low or apart, or if an op ran
outside the compiled programs.

    python examples/train_digits_cnn.py
"""

from __future__ import annotations

import copy
import statistics
import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import tpu_compile

EPOCHS = 6
BATCH = 64
TOLERANCE = 1e-5
ACCURACY = 0.95


class DigitsNet(nn.Module):
    """Two convolutions and a linear layer for images [batch, 1, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(32 * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, [batch, 10]."""
        return self.classifier(self.features(images).flatten(1))


def load_data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images, held-out images, training labels, held-out labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    split = train_test_split(images.numpy(), digits.target, test_size=0.2, random_state=0)
    train, held_out, train_labels, held_out_labels = (torch.from_numpy(part) for part in split)
    return train, held_out, train_labels.long(), held_out_labels.long()


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of `images` that get their label."""
    model.eval()
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    model.train()
    return float(right.float().mean())


def main() -> int:
    """Train both copies and return the exit code."""
    torch.manual_seed(0)
    images, held_out, labels, held_out_labels = load_data()
    eager = DigitsNet()
    ours = torch.compile(copy.deepcopy(eager), backend="tpu", fullgraph=True)
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9) for model in (eager, ours)
    ]
    steps = len(images) // BATCH
    print(f"{EPOCHS} epochs of {steps} batches of {BATCH} images; the first call compiles ...\n")

    losses: list[tuple[float, float]] = []
    print("epoch   loss eager   loss compiled   difference")
    for epoch in range(EPOCHS):
        # The last, smaller batch is left out, so that every step has the same shapes.
        for batch in torch.randperm(len(images))[: steps * BATCH].split(BATCH):
            pair = []
            for model, optimizer in zip((eager, ours), optimizers, strict=True):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
                pair.append(loss.item())
            losses.append((pair[0], pair[1]))
        means = [statistics.fmean(column) for column in zip(*losses[-steps:], strict=True)]
        difference = abs(means[1] - means[0])
        print(f"{epoch + 1:5}   {means[0]:10.6f}   {means[1]:13.6f}   {difference:10.1e}")

    accuracies = [accuracy(model, held_out, held_out_labels) for model in (eager, ours)]
    print(f"\nheld-out accuracy: eager {accuracies[0]:.3f}, compiled {accuracies[1]:.3f}")
    print(f"XLA compiles: {tpu_compile.stats().xla_compiles}")

    failures = [f"{op} ran in eager PyTorch" for op in tpu_compile.stats().fallback_ops]
    worst = max(abs(loss - expected) / expected for expected, loss in losses[:10])
    print(f"largest difference of the first ten losses, relative: {worst:.1e}")
    if not worst <= TOLERANCE:
        failures.append(f"the first ten losses differ by {worst:.1e} of their size")
    if not losses[-1][1] < losses[0][1] / 4:
        failures.append(f"the loss went from {losses[0][1]:.3f} to {losses[-1][1]:.3f} only")
    if not min(accuracies) >= ACCURACY:
        failures.append(f"a held-out accuracy is below {ACCURACY}")
    if not abs(accuracies[1] - accuracies[0]) <= 0.01:
        failures.append("the held-out accuracies are more than 0.01 apart")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
