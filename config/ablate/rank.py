# Overlay for CoFrGeNet-A and the full CoFrGeNet: the other reading of CAttnM, scores of rank L (Figure 2 of
# the paper) in place of the collapsed ones (its section 4.2).
#   python train.py config/cofrgenet_a.py config/ablate/rank.py --out_dir=out/cofrgenet_a_rank
# Table 1 counts L (p + l) + p^2 parameters per layer, whatever the depth. This model has L d p more, the
# weights of a_1 to a_d, and L (d + 1) intercepts. Evaluation clips z; print clips a_0 + z:
# --cf_clip_of=ladder.
cattn_scores = "rank"
