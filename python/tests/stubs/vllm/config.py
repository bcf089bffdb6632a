"""Stands for vllm.config of vLLM 0.32."""
import contextlib


class DeviceConfig:
    def __init__(self, device="auto"):
        self.device = device


class VllmConfig:
    def __init__(self, device_config=None):
        self.device_config = device_config


@contextlib.contextmanager
def set_current_vllm_config(vllm_config):
    yield
