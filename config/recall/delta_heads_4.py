# Overlay for Gated DeltaNet: four heads, each with a decay of its own.
#   python train.py config/recall/softmax.py config/recall/gated_deltanet.py \
#     config/recall/delta_heads_4.py --out_dir=out/delta_heads_4
delta_heads = 4
