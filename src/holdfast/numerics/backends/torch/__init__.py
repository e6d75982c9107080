"""Operations on torch alone, for machines without a C compiler."""
