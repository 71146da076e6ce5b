# Overlay for a SAFFU: the radius unit adds up its weighted vectors too (Tables 1 and 2 of the paper).
#   python train.py config/saffu.py config/ablate/saffu_sum.py --out_dir=out/saffu_sum
saffu_radius_mode = "sum"
