# Overlay for any of the papers' CoFrGeNets: depths counted with w_0. There a ladder of depth d is
# a_0 + 1/(a_1 + ... + 1/a_{d-1}), one partial denominator less than here: depth 7 is cf_depth=6.
# For this reading: the example of section 4.1 has w_0 "at depth 1" and w_1 "at depth 2", and Table 1 counts
# 2 d numbers per position in CAttnU, w_0 among them. Against it: section 2 has a_1 to a_d at "depth d", and
# the schedule trains the linear part from the start and the first layer for half of the steps. The overlay
# leaves the schedule as it is: w_1 wakes at half.
# The papers' depths 1, 3, 5 and 7 become cf_depth 0, 2, 4 and 6. Where all a_k are 0, an odd cf_depth is on
# a pole (K_d = 0) and an even one is not (K_d = 1). Depth 1 has no fraction:
# --cf_control=zero --dyadic=False --decay_ladders=False.
#   python train.py config/cofrgenet_f.py config/ablate/depth_with_w0.py --out_dir=out/f_depth_with_w0
cf_depth = 6
