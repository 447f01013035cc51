"""Schedules of the noise and of the clip norm, by public rules. Each step is charged with the noise that it has."""

from lehr.compat.opacus.schedulers.grad_clip_scheduler import ExponentialGradClip, LambdaGradClip, StepGradClip
from lehr.compat.opacus.schedulers.noise_scheduler import ExponentialNoise, LambdaNoise, StepNoise

__all__ = ["ExponentialGradClip", "ExponentialNoise", "LambdaGradClip", "LambdaNoise", "StepGradClip", "StepNoise"]
