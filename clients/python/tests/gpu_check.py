"""Reads frames in GPU memory with PyTorch, without a copy, and compares them with what the cfpipe command reads.

    gpu_check.py KEY
"""
import subprocess
import sys

import torch

import cfpipe

key = sys.argv[1]
with cfpipe.Frames(key, wait=10) as frames:
    whole = 0
    for _ in range(50):
        f = frames.next(timeout=5)
        assert f.on_gpu, "the frames do not lie on the GPU"
        y, uv = (torch.as_tensor(p, device="cuda") for p in f.cuda())
        assert y.shape == (f.meta.height, f.meta.width) and uv.shape[2] == 2, (y.shape, uv.shape)
        assert y.data_ptr() == f.cuda()[0].__cuda_array_interface__["data"][0], "PyTorch has made a copy"
        mean, std = y.float().mean().item(), y.float().std().item()
        torch.cuda.synchronize()
        if f.release():
            whole += 1
            assert 16 <= mean <= 235 and std > 5, (mean, std)
    print("RESULT PyTorch read 50 frames without a copy, %d whole, luma mean %.1f, deviation %.1f" % (whole, mean, std))
    assert whole > 30
