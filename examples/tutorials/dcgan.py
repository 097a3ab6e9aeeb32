"""A DCGAN that draws handwritten digits.

    python examples/tutorials/dcgan.py [tpu|cpu]

Nothing but the line `device = ...` knows of the TPU. Noise is drawn on the CPU, so that both
devices see the same and their losses can be compared.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import tpu_compile.device  # noqa: F401

device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "tpu")
NOISE = 16


def weights_init(module: nn.Module) -> None:
    name = type(module).__name__
    if "Conv" in name:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def make_generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 32, 2, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def make_discriminator() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 2, 1, 0, bias=False),
        nn.Sigmoid(),
    )


def main() -> None:
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:640].unsqueeze(1) / 8 - 1
    generator, discriminator = make_generator(), make_discriminator()
    generator.apply(weights_init)
    discriminator.apply(weights_init)
    generator.to(device)
    discriminator.to(device)
    criterion = nn.BCELoss()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for epoch in range(2):
        for step, data in enumerate(images.split(64)):
            real = data.to(device)
            label = torch.full((real.size(0),), 1.0, device=device)
            # Discriminator: maximize log(D(x)) + log(1 - D(G(z))).
            discriminator.zero_grad()
            error_real = criterion(discriminator(real).view(-1), label)
            error_real.backward()
            fake = generator(torch.randn(real.size(0), NOISE, 1, 1).to(device))
            label.fill_(0.0)
            error_fake = criterion(discriminator(fake.detach()).view(-1), label)
            error_fake.backward()
            optimizer_d.step()
            # Generator: maximize log(D(G(z))).
            generator.zero_grad()
            label.fill_(1.0)
            error_g = criterion(discriminator(fake).view(-1), label)
            error_g.backward()
            optimizer_g.step()
            if step % 5 == 0:
                losses = (error_real + error_fake).item(), error_g.item()
                print(
                    f"epoch {epoch} step {step} loss {losses[0]:.6f} generator loss {losses[1]:.6f}"
                )


if __name__ == "__main__":
    main()
