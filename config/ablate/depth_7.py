# The paper's grid: ladders of depth 7; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/depth_7.py --out_dir=out/f_depth_7
cf_depth = 7
