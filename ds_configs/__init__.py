"""DeepSpeed settings: ZeRO stages 0 to 3 and CPU offload. What a flag sets does not stand in them."""
