# RoPE with Llama 3's base, on top of any model with RoPE. The ExPE paper's baselines have "the Llama 3
# architecture" and no base: its recipes here take 10,000. Beyond the training length the base matters.
#   python train.py config/paper/expe/35m_rope.py config/ablate/rope_500000.py --out_dir=out/rope_500000
rope_base = 500_000.0
