"""Gradients of gamma and Dirichlet numbers with respect to the parameters they were drawn with.

The approximations are ATen's, to about three digits: series near the ends, saddle points for large
parameters (Rice), and rational functions in logarithms between. What ATen computes in double
precision to survive a cancellation is written without it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lowering.decompositions import decomposition

aten = torch.ops.aten

# p and q of exp(p / q), by power of log(parameter); each a polynomial in log(x / parameter).
_GAMMA = (
    (
        (0.16009398, 0.53487893, 0.040121004),
        (-0.094634809, 0.1298071, -0.0065914022),
        (0.025146376, 0.065735949, -0.0026286047),
        (-0.0030648343, -0.0015649758, -0.0013441777),
    ),
    (
        (1.0, 0.16639465, 0.017050642),
        (0.32668115, 0.020070113, -0.0021309326),
        (0.10406089, -0.0035938915, 0.00085092367),
        (0.0014179084, -0.00058392623, -1.5247877e-07),
    ),
)

# p and q by power of log(x), of log(alpha / x), of log(total x / alpha).
_BETA = (
    (
        (
            (1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
            (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
            (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013),
        ),
        (
            (0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
            (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
            (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05),
        ),
        (
            (-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
            (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
            (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05),
        ),
    ),
    (
        (
            (1.0, -0.02924021934, -0.04438342661, 0.007285809825),
            (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
            (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149),
        ),
        (
            (0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
            (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
            (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05),
        ),
        (
            (0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
            (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
            (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06),
        ),
    ),
)


def _polynomial(coefficients: Sequence[Any], *variables: Tensor) -> Tensor:
    """Return a polynomial of several variables, lowest order first, the outermost first."""
    first, rest = variables[0], variables[1:]
    value: Tensor | float = 0.0
    for coefficient in reversed(coefficients):
        term = _polynomial(coefficient, *rest) if rest else coefficient
        value = value * first + term
    assert isinstance(value, Tensor)
    return value


def _less_log1p(t: Tensor) -> Tensor:
    """Return t - log(1 + t), by its series near 0."""
    terms = 16 if t.dtype is torch.float32 else 34
    series = _polynomial([(-1) ** n / n for n in range(2, terms)], t) * t * t
    return torch.where(t.abs() < 0.3, series, t - torch.log1p(t))


# --- gamma ---------------------------------------------------------------------------------------


def _gamma_small(x: Tensor, alpha: Tensor) -> Tensor:
    """Return the gradient by the Taylor series of the distribution function, for x below 0.8."""
    first, second = 1 / alpha, 1 / alpha**2
    factor = torch.ones_like(x)
    for n in range(1, 6):
        factor = factor * -x / n
        first = first + factor / (alpha + n)
        second = second + factor / (alpha + n) ** 2
    # Both the distribution and its density have the factor x**alpha.
    slope = (x.log() - torch.special.digamma(alpha)) * first - second
    result = -slope * x * x.exp()
    return torch.where(result.isnan(), 0.0, result)


def _gamma_large(x: Tensor, alpha: Tensor) -> Tensor:
    """Return the gradient by Rice's saddle point, for alpha above 8."""
    polynomial = 1440 * alpha**2 + 6 * x * (53 - 120 * x) - 65 * x**2 / alpha
    polynomial = polynomial + alpha * (107 + 3600 * x)
    near = (1 + 24 * alpha * (1 + 12 * alpha)) * (polynomial / alpha**2) / (1244160 * alpha**2)

    root = (8 * alpha).sqrt()
    t = (x - alpha) / alpha
    power = (alpha * _less_log1p(t)).pow(-1.5)
    both = root / (alpha - x) + torch.where(x < alpha, -power, power)
    logarithm = (x / alpha).log()
    slope = logarithm * both - (2 / alpha).sqrt() * (alpha + x) / (alpha - x) ** 2
    stirling = 1 + (1 + 1 / (24 * alpha)) / (12 * alpha)
    return torch.where(t.abs() <= 0.1, near, -stirling * x * slope / root)


@decomposition(aten._standard_gamma_grad.default)
def standard_gamma_grad(self: Tensor, output: Tensor) -> Tensor:
    """The derivative of gamma numbers `output` by their shape parameter `self`."""
    alpha, x = self, output
    p, q = (_polynomial(table, alpha.log(), (x / alpha).log()) for table in _GAMMA)
    value = torch.where(alpha > 8, _gamma_large(x, alpha), (p / q).exp())
    return torch.where(x < 0.8, _gamma_small(x, alpha), value)


# --- Dirichlet, as beta numbers of alpha and beta = total - alpha --------------------------------


def _beta_near_zero(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    digamma = torch.special.digamma
    factor = digamma(alpha) - digamma(alpha + beta) - x.log()
    series = (factor + 1 / alpha) / alpha
    product = torch.ones_like(x)
    for n in range(1, 11):
        product = product * (n - beta) * x / n
        series = series + product / (alpha + n) * (factor + 1 / (alpha + n))
    result = x * (1 - x).pow(-beta) * series
    return torch.where(result.isnan(), 0.0, result)


def _beta_near_one(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the gradient by beta at a small x; with the parameters exchanged, that near 1."""
    digamma = torch.special.digamma
    factor = digamma(alpha + beta) - digamma(beta)
    series = factor / alpha
    power, product, slope = torch.ones_like(x), torch.ones_like(x), torch.zeros_like(x)
    for n in range(1, 9):
        power = power * -x / n
        slope = slope * (beta - n) + product
        product = product * (beta - n)
        series = series + power / (alpha + n) * (slope + factor * product)
    result = -(1 - x).pow(1 - beta) * series
    return torch.where(result.isnan(), 0.0, result)


def _beta_large(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return the gradient by Rice's saddle point, for both parameters above 6."""
    total = alpha + beta
    mean = alpha / total
    deviation = (alpha * beta / (total + 1)).sqrt() / total

    # Divided by total**5, lest the powers overflow.
    a, b = mean, beta / total
    polynomial = 8 * (1 - x) * (135 * b - 11 / total)
    polynomial = (453 / total + 1620 * b * (1 - x) - 455 * x / total) * b + a * polynomial
    polynomial = 3 * (59 / total + 180 * b - 90 * x / total) * b**2 + a * polynomial
    polynomial = (43 / total + 20 * (16 / total + 27 * b) * x) * b**3 + a * polynomial
    polynomial = 47 * x * b**4 / total + a * polynomial
    ratio = (1 + 12 * alpha) * (1 + 12 * beta) / (total * total)
    near = ratio / (1 - x) * polynomial / (12960 * a**3 * b**2 * (1 + 12 * total))

    def stirling(parameter: Tensor) -> Tensor:
        return 1 + 1 / (12 * parameter) + 1 / (288 * parameter**2)

    # alpha (x - 1) + beta x, and the relative distances from the means of x and 1 - x.
    distance = total * (x - mean)
    first = 2 * a**2 * (x - 1) + a * b * (x - 1) - x * b**2
    first = first * total.sqrt() / ((2 * alpha / beta).sqrt() * distance**2)
    logarithm = -0.5 * (x / mean).log()
    third = (8 * alpha * beta / total).sqrt() / distance
    entropy = alpha * _less_log1p((x - mean) / mean) + beta * _less_log1p((mean - x) / (1 - mean))
    fourth = entropy.pow(-1.5)
    bracket = first + logarithm * (third + torch.where(x < mean, fourth, -fourth))
    factor = -x / (2 * alpha * beta / total).sqrt()
    far = stirling(alpha) * stirling(beta) / stirling(total) * factor * bracket
    return torch.where((x - mean).abs() <= 0.1 * deviation, near, far)


@decomposition(aten._dirichlet_grad.default)
def dirichlet_grad(x: Tensor, alpha: Tensor, total: Tensor) -> Tensor:
    """The derivative of shares `x` by their parameters, scaled by 1 / (1 - x)."""
    beta = total - alpha
    boundary = total * x * (1 - x)
    u = x.log()
    a = alpha.log() - u
    b = total.log() - a
    p, q = (_polynomial(table, u, a, b) for table in _BETA)
    digamma = torch.special.digamma
    value = p / q * (x * (digamma(total) - digamma(alpha)) / beta)
    value = torch.where((alpha > 6) & (beta > 6), _beta_large(x, alpha, beta), value)
    near_one = -_beta_near_one(1 - x, beta, alpha)
    value = torch.where((x >= 0.5) & (boundary < 0.75), near_one, value)
    return torch.where((x <= 0.5) & (boundary < 2.5), _beta_near_zero(x, alpha, beta), value)
