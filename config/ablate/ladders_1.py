# The paper's grid: 1 ladder in an ensemble; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/ladders_1.py --out_dir=out/f_ladders_1
cf_ladders = 1
