"""A variational autoencoder of handwritten digits.

    python examples/tutorials/vae.py [tpu|cpu]

Nothing but the line `device = ...` knows of the TPU. Noise is drawn on the CPU, so that both
devices see the same and their losses can be compared.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import tpu_compile.device  # noqa: F401

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "tpu")


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.mean = nn.Linear(48, 8)
        self.log_variance = nn.Linear(48, 8)
        self.fc3 = nn.Linear(8, 48)
        self.fc4 = nn.Linear(48, 64)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.relu(self.fc1(x))
        return self.mean(h), self.log_variance(h)

    def reparameterize(self, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(mean.shape).to(mean.device)
        return mean + noise * torch.exp(0.5 * log_variance)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encode(x.view(-1, 64))
        return self.decode(self.reparameterize(mean, log_variance)), mean, log_variance


def loss_function(
    output: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor
) -> torch.Tensor:
    likelihood = F.binary_cross_entropy(output, x.view(-1, 64), reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return likelihood + divergence


def main() -> None:
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:1280] / 16
    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        total = 0.0
        for x in images.split(64):
            x = x.to(device)
            optimizer.zero_grad()
            output, mean, log_variance = model(x)
            loss = loss_function(output, x, mean, log_variance)
            loss.backward()
            total += loss.item()
            optimizer.step()
        print(f"epoch {epoch} loss {total / len(images):.6f}")
    with torch.no_grad():
        picture = model.decode(torch.zeros(1, 8, device=device)).view(8, 8).cpu()
    print("\n".join("".join(" .:-=+*#%@"[int(9.99 * p)] for p in row) for row in picture.tolist()))


if __name__ == "__main__":
    main()
