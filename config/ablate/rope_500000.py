# RoPE with Llama 3's base, on top of any model with RoPE. The ExPE paper builds its baselines on "Llama 3" and
# gives no base: its recipes here take 10,000, and beyond the training length the base matters.
#   python train.py config/paper/expe/35m_rope.py config/ablate/rope_500000.py --out_dir=out/rope_500000
rope_base = 500_000.0
