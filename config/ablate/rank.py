# Overlay for CoFrGeNet-A and the full CoFrGeNet: the other reading of CAttnM, scores of rank L (Figure 2 of
# the paper) in place of the collapsed ones (its section 4.2).
#   python train.py config/cofrgenet_a.py config/ablate/rank.py --out_dir=out/cofrgenet_a_rank
cattn_scores = "rank"
