# Overlay for a SAFFU: the block unit concatenates its weighted vectors too (Tables 2 and 4 of the paper).
#   python train.py config/saffu.py config/ablate/saffu_cat.py --out_dir=out/saffu_cat
saffu_block_mode = "cat"
