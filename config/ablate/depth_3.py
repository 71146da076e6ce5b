# The paper's grid: ladders of depth 3; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/depth_3.py --out_dir=out/f_depth_3
cf_depth = 3
