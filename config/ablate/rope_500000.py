# Overlay for any model with RoPE: Llama 3's base. The ExPE paper's baselines have "the Llama 3
# architecture", but the paper gives no base, and its recipes here take 10,000. The base matters beyond the
# training length.
#   python train.py config/paper/expe/35m_rope.py config/ablate/rope_500000.py --out_dir=out/rope_500000
rope_base = 500_000.0
