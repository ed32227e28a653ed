"""What ties us to others. Only what stands here may import torch, and only within a process that is torch's already."""
